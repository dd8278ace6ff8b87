"""What a run writes down of its rewards: under the names that its samples and metrics have, in plain JSON."""

import json
import math
from dataclasses import replace
from statistics import fmean

import pytest

from diffrl.rewards.score import WeightedScorer
from diffrl.run.directory import rewards_record
from diffrl.tracking.pictured import spread
from diffrl.tracking.rewards import lower_is_better
from diffrl.tracking.store import SampleStore
from tests.training.harness import BRIGHTNESS, rows_of, settings, start
from tests.training.scorers import Brightness


class Dark(Brightness):
    """Brightness that is to be lowered, in a range without a lower end."""

    spec = replace(Brightness.spec, name="dark", range=(-math.inf, 1.0), higher_is_better=False, version="2.1")


DARK = f"{__name__}:Dark"


@pytest.fixture(scope="module")
def run_dir(random_sd3, tmp_path_factory):
    """A run that lowers one reward and raises another, and is measured by both the other way round."""
    rewards = [{"name": DARK, "label": "dark", "weight": -2.0, "shift": 0.25, "scale": 0.5}, {"name": BRIGHTNESS}]
    held_out = [{"name": BRIGHTNESS, "label": "light"}, {"name": DARK}]
    data = settings(random_sd3, tmp_path_factory.mktemp("rewards"), run={"iterations": 1}, rewards=rewards)
    data["eval"]["rewards"] = held_out
    return start(data)[0]


def test_it_says_of_each_reward_what_its_scorer_says(run_dir):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    record = json.loads((run_dir / "rewards.json").read_text(), parse_constant=refuse)
    dark = {"name": "dark", "range": [None, 1.0], "higher_is_better": False, "version": "2.1"}
    dark["description"] = "mean of a colour channel"
    light = {**dark, "name": "brightness", "range": [0.0, 1.0], "higher_is_better": True, "version": "1"}
    plain = {"weight": 1.0, "shift": 0.0, "scale": 1.0}
    assert record == {
        "training": {"dark": {**dark, "weight": -2.0, "shift": 0.25, "scale": 0.5}, BRIGHTNESS: {**light, **plain}},
        "held_out": {"light": {**light, **plain}, DARK: {**dark, **plain}},
    }


def test_its_labels_are_those_of_the_samples_and_of_the_metrics(run_dir):
    record = json.loads((run_dir / "rewards.json").read_text())
    row = rows_of(run_dir)[-1]
    with SampleStore.open_readonly(run_dir) as store:
        for stage, part, metric in (("train", "training", "reward"), ("eval", "held_out", "held_out")):
            names = {name for sample in store.read(stage=stage) for name in sample.rewards}
            assert {name.partition("/")[0] for name in names} == set(record[part])
            assert all(f"{metric}/{label}" in row for label in record[part])
    assert lower_is_better(record, "train") == {"dark"} and lower_is_better(record, "eval") == {DARK}


def test_the_total_of_training_is_of_training_rewards_and_that_of_evaluations_of_held_out_ones(run_dir):
    with SampleStore.open_readonly(run_dir) as store:
        for sample in store.read(stage="train"):
            expected = -2.0 * (sample.rewards["dark"] - 0.25) / 0.5 + sample.rewards[BRIGHTNESS]
            assert sample.total == pytest.approx(expected, rel=1e-5)
        for sample in store.read(stage="eval"):
            assert sample.total == pytest.approx(sample.rewards["light"] + sample.rewards[DARK], rel=1e-5)


def test_every_held_out_score_is_kept_and_pictures_of_the_first_evaluation_a_spread_and_what_changed_most(run_dir):
    """samples: 5, pictures_per_evaluation: 3."""
    with SampleStore.open_readonly(run_dir) as store:
        samples = store.read(stage="eval")
        pictures = {(one.iteration, one.group): store.picture(one) for one in samples if one.file}
    rows = {row["iteration"]: row for row in rows_of(run_dir) if "held_out/light" in row}
    assert len(samples) == 5 * len(rows)
    for iteration, row in rows.items():
        own = [sample for sample in samples if sample.iteration == iteration]
        first = samples[:5]
        kept = {place for place, sample in enumerate(own) if sample.file}
        changed = [new.total - old.total for new, old in zip(own, first, strict=True)]
        extreme = [max(max(changed), 0.0), *(change for change in sorted(changed)[:2] if change < 0)]
        most = {place for place, change in enumerate(changed) if change and change in extreme}
        assert kept == (set(range(5)) if iteration == 0 else set(spread([one.prompt for one in own], 3)) | most)
        for sample in own:  # small ones too: up to 64 pixels they are exact
            if sample.file:
                shown = pictures[iteration, sample.group].float()
                assert shown[0].mean() / 255 == pytest.approx(sample.rewards["light"], rel=1e-4)
        assert fmean(sample.rewards["light"] for sample in own) == pytest.approx(row["held_out/light"], rel=1e-6)


def test_numbers_that_json_has_no_words_for_are_null():
    scorer = WeightedScorer("x", Dark(), weight=math.nan, shift=math.inf)
    facts = rewards_record([scorer], [])["training"]["x"]
    assert (facts["weight"], facts["shift"], facts["scale"], facts["range"]) == (None, None, 1.0, [None, 1.0])
