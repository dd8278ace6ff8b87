"""Images to edit that cannot be read: before a run, in the middle of one, and when a reward looks at them."""

import io
import json
import math
from pathlib import Path

import pytest
import torch
from rich.console import Console

from diffrl.config.load import make_config
from diffrl.data.prompts import load_prompts
from diffrl.data.sampler import prompt_indices
from diffrl.data.sources import MOST_READ, read_sources
from diffrl.errors import ConfigError, SourceError
from diffrl.lifecycle import resume, train
from diffrl.preflight.check import check_config
from diffrl.records import Prompt
from diffrl.rewards.score import WeightedScorer, score
from diffrl.run.callbacks import Callback
from reward_models import ScorerSpec
from reward_models.base import output_of_scores
from tests.edits import image, write_edits
from tests.training.harness import assert_same_run, make_trainer, settings, start, undrawn

ITERATIONS = 4


@pytest.fixture
def data(random_pipelines, tmp_path):
    return settings(
        random_pipelines("flux_kontext"),
        tmp_path / "runs",
        model={"family": "flux_kontext", "lora": {"rank": 2, "alpha": 4}},
        run={"iterations": ITERATIONS, "checkpoint_every": ITERATIONS},
        prompts={
            "train": write_edits(tmp_path / "train", images=7),
            "eval": write_edits(tmp_path / "eval", images=1),
            "per_iteration": 1,
        },
        rollout={"steps": 4},
        train={"updates_per_iteration": 1},
        eval={"samples": 2, "steps": 1},
    )


def cut(path):
    Path(path).write_bytes(Path(path).read_bytes()[:1500])


def test_a_check_reads_images_as_training_will_and_names_what_it_cannot(data, tmp_path):
    bad = tmp_path / "train/images/5.png"
    assert any("7 of 7 read" in line for line in check_config(make_config(data), ask_rewards=False))
    cut(bad)
    load_prompts(data["prompts"]["train"])  # its beginning is whole
    with pytest.raises(ConfigError, match=r"prompts.train names 1 of 7 that cannot be read. .*5.png"):
        check_config(make_config(data), ask_rewards=False)


def test_of_thousands_of_images_a_check_reads_some_from_end_to_end(tmp_path, monkeypatch):
    image(0).save(tmp_path / "whole.png")
    asked = []
    monkeypatch.setattr("diffrl.data.sources.read_source", asked.append)
    prompts = [Prompt("make it red", {}, str(number)) for number in range(3 * MOST_READ)]
    assert read_sources(prompts, "prompts.train") == f"{MOST_READ:,} of {3 * MOST_READ:,} read"
    assert len(set(asked)) == MOST_READ and asked[0] == "0" and int(asked[-1]) >= 3 * MOST_READ - 3


class Loses(Callback):
    """Takes an image away once the second iteration is done."""

    def __init__(self, path):
        self.path = path

    def on_iteration(self, iteration, metrics):
        if iteration == 2:
            self.path.rename(self.path.with_suffix(".away"))


def test_a_run_whose_image_is_gone_ends_after_a_checkpoint_and_goes_on_as_if_nothing_had_been(data, tmp_path):
    whole, _ = start({**data, "run": {**data["run"], "dir": str(tmp_path / "whole")}})
    prompts = load_prompts(data["prompts"]["train"])
    (third,) = prompt_indices(len(prompts), 1, data["run"]["seed"], 2)
    path = Path(prompts[third].source)
    before = {prompts[i].source for n in range(2) for i in prompt_indices(len(prompts), 1, data["run"]["seed"], n)}
    assert str(path) not in before
    with undrawn(), pytest.raises(SourceError, match=rf"{path.name}.*newest checkpoint is of iteration 2"):
        train(make_config(data), Console(file=io.StringIO()), [Loses(path)])
    path.with_suffix(".away").rename(path)
    run = tmp_path / "runs/run"
    with undrawn():
        resume(run, Console(file=io.StringIO()))
    assert_same_run(run, whole)


class Redness:
    """The mean red of the image that a sample is an edit of; notes how many it was given."""

    spec = ScorerSpec("redness", "Red.", (0.0, 255.0), uses_source=True)

    def __init__(self):
        self.given = []

    def __call__(self, batch):
        self.given.append(len(batch))
        return output_of_scores(torch.stack([source[0].float().mean() for source in batch.sources]))

    def to(self, device):
        return self


def test_a_reward_that_looks_at_an_image_that_is_gone_fails_for_its_samples_alone(tmp_path):
    prompts = load_prompts(write_edits(tmp_path, images=3))[::3]
    media = torch.zeros(3, 3, 8, 8, dtype=torch.uint8)
    whole = score([WeightedScorer("redness", Redness())], media, prompts)
    Path(prompts[1].source).unlink()
    scorer = Redness()
    table = score([WeightedScorer("redness", scorer)], media, prompts)
    assert table.ok.tolist() == [True, False, True] and scorer.given == [2]
    assert table.total[[0, 2]].tolist() == whole.total[[0, 2]].tolist() and math.isnan(table.total[1])
    assert "1.png" in table.errors[1]
    for prompt in (prompts[0], prompts[2]):
        Path(prompt.source).unlink()
    assert not score([WeightedScorer("redness", scorer)], media, prompts).ok.any() and scorer.given == [2]
    assert json.dumps(table.errors)


def test_an_image_of_another_shape_than_it_had_is_named(data, tmp_path):
    trainer = make_trainer(data)
    batch = trainer.next_batch()
    path = Path(batch.prompts[0].source)
    image(0, 32, 64).save(path)
    with pytest.raises(SourceError, match=rf"{path.name}' cannot be used.*64 x 32"):
        trainer.encoded(batch)
