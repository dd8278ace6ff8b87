"""A run that begins with another run's weights has those, or it does not begin."""

import json
import os
import shutil

import pytest

from diffrl.cli import main
from diffrl.config.load import make_config
from diffrl.errors import CheckpointError, ConfigError
from diffrl.run.checkpoints import NEWEST, Choice
from diffrl.run.set_aside import BEFORE
from diffrl.run.start_weights import begin_with, pin_initial
from diffrl.studies.compare.arguments import Candidate, load_candidates
from diffrl.training.loop import Trainer
from tests.run.test_resume import crashing
from tests.tiers import daily
from tests.training.harness import assert_same_run, go_on, rows_of, settings, start, write_config

LORA = {"rank": 2, "alpha": 3, "targets": ["to_q"]}


def of(pipeline, directory, lora=None, **changes):
    data = settings(pipeline, directory, train={"learning_rate": 1e-2, "ema": None if lora else {"decay": 0.7}})
    data["model"]["lora"] = lora
    data["run"] |= {"checkpoint_every": 1, "eval_every": 1}
    for section, values in changes.items():
        data[section] |= values
    return data


@pytest.fixture(scope="module")
def sources(random_sd3, tmp_path_factory):
    """Two iterations with LoRA, and two of all weights with an EMA."""
    folder = tmp_path_factory.mktemp("sources")
    return {
        name: start(of(random_sd3, folder, lora, run={"name": name}))[0]
        for name, lora in (("lora", LORA), ("full", None))
    }


def second(pipeline, directory, source, step=2, **changes):
    """Settings of a run that begins with a source's weights."""
    data = of(pipeline, directory, LORA if source.name == "lora" else None, **changes)
    data["model"]["init_from"] = {"run": str(source), "step": step}
    return data


def held_out(row):
    return {key: value for key, value in row.items() if key.startswith("held_out/")}


@pytest.mark.parametrize("name", daily(["lora", "full"], ["full"]))
@pytest.mark.parametrize("step", daily([1, 2], [1]))
def test_it_begins_where_the_other_one_was(random_sd3, tmp_path, sources, name, step):
    """What the other one was evaluated with, its EMA where it has one: the same prompts and noise, to the last bit."""
    run, said = start(second(random_sd3, tmp_path, sources[name], step, run={"iterations": 1}))
    rows, others = rows_of(run), rows_of(sources[name])
    assert held_out(rows[0]) == held_out(others[step]) != held_out(others[0])
    assert rows[1]["iteration"] == 1 and f"after its iteration {step} (" in said
    kept = json.loads((run / "environment.json").read_text())["init_from"]
    assert (kept["run"], kept["step"], len(kept["sha256"])) == (str(sources[name]), step, 64)


def test_the_reference_stays_the_pipeline(random_sd3, tmp_path, sources):
    """Before the first update the distance to the reference is that of the weights that it begins with, not 0."""
    one = {"train": {"updates_per_iteration": 1}, "run": {"iterations": 1}, "objective": {"kl": 0.5}}
    plain, _ = start(of(random_sd3, tmp_path / "plain", **one))
    begun, _ = start(second(random_sd3, tmp_path / "begun", sources["full"], **one))
    assert rows_of(plain)[1]["update/reference_kl"] == 0.0 < rows_of(begun)[1]["update/reference_kl"]


def killed(pipeline, directory, source):
    """A run that was killed in its second iteration, before its first checkpoint."""
    with crashing(Trainer, "iterate", 2):
        start(second(pipeline, directory, source, run={"checkpoint_every": 2}))
    return directory / "run"


def test_killed_before_its_first_checkpoint_it_begins_with_the_same(random_sd3, tmp_path, sources):
    source = shutil.copytree(sources["lora"], tmp_path / "lora")
    straight, _ = start(second(random_sd3, tmp_path / "straight", source, run={"checkpoint_every": 2}))
    run = killed(random_sd3, tmp_path / "killed", source)
    said = go_on(run)
    assert "it starts again from the beginning" in said and "Begins with the weights of" in said
    assert_same_run(run, straight)
    shutil.rmtree(source)  # from its own checkpoints it goes on without the other run
    (run / "summary.json").unlink()
    go_on(run)
    assert_same_run(run, straight)


def remove(source):
    shutil.rmtree(source)


def prune(source):
    shutil.rmtree(source / "checkpoints/step-000002")


def train_anew(source):
    manifest = source / "checkpoints/step-000002/manifest.json"
    manifest.write_text(manifest.read_text() + "\n")


def damage(source):
    os.truncate(source / "checkpoints/step-000002/policy.safetensors", 9)


GONE = {remove: "If it was moved", prune: "has those of 1", train_anew: "another checkpoint now", damage: "has 9 bytes"}


def test_with_other_weights_or_none_it_does_not_begin_again(random_sd3, tmp_path, sources):
    run = killed(random_sd3, tmp_path, sources["lora"])
    before = (run / "metrics.jsonl").read_bytes()
    for number, (loss, words) in enumerate(GONE.items()):
        source = shutil.copytree(sources["lora"], tmp_path / f"copy-{number}")
        loss(source)
        with pytest.raises((ConfigError, CheckpointError), match=words):
            go_on(run, f"model.init_from.run={source}")
        assert (run / "metrics.jsonl").read_bytes() == before and not (run / f"{BEFORE}1").exists()
        assert str(sources["lora"]) in (run / "config.yaml").read_text()


def test_of_another_model_or_lora_is_refused_before_anything_is_written(random_sd3, tmp_path, sources):
    wrong = {
        "model.lora.rank=4 where it has 2": {**LORA, "rank": 4},
        "model.lora.alpha=5": {**LORA, "alpha": 5},
        "model.lora.targets": {**LORA, "targets": ["to_k"]},
        "model.lora=none": None,
    }
    for words, lora in wrong.items():
        config = make_config(of(random_sd3, tmp_path, lora))
        with pytest.raises(ConfigError, match=words):
            begin_with(config, sources["lora"], NEWEST, pytest.fail)
    elsewhere = shutil.copytree(random_sd3, tmp_path / "other")
    data = second(elsewhere, tmp_path, sources["lora"])
    with pytest.raises(ConfigError, match="model.path="):
        pin_initial(make_config(data))
    with pytest.raises(ConfigError, match="model.path="):
        start(data)
    assert not (tmp_path / "run").exists()


def test_the_command_line_names_the_checkpoint(random_sd3, tmp_path, sources, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr("diffrl.lifecycle.train", lambda config, console, **options: seen.append(config))
    path = write_config(of(random_sd3, tmp_path, LORA), tmp_path / "config.yaml")
    for options, step in ((["--step", "1"], 1), ([], 2), (["--best"], None)):
        with pytest.raises(SystemExit) as ended:
            main(["train", str(path), "--init-from", str(sources["lora"]), *options])
        assert not ended.value.code
        begun = seen.pop().model.init_from
        assert (begun.run, begun.sha256) == (str(sources["lora"]), None) and step in (None, begun.step)
    values = [next(iter(held_out(row).values())) for row in rows_of(sources["lora"])]
    assert begun.step == max((1, 2), key=lambda step: values[step])
    assert "Best held-out" in capsys.readouterr().out
    chosen = begin_with(make_config(of(random_sd3, tmp_path, LORA)), sources["lora"], Choice(step=1), pytest.fail)
    assert len(pin_initial(chosen).model.init_from.sha256) == 64
    for options in (["--step", "1"], ["--resume", str(sources["lora"]), "--init-from", str(sources["lora"])]):
        with pytest.raises(SystemExit) as ended:
            main(["train", *([] if "--resume" in options else [str(path)]), *options])
        assert ended.value.code == 2 and "--init-from" in capsys.readouterr().err


def test_a_comparison_keeps_to_the_same_weights(random_sd3, tmp_path, sources):
    """Its runs write the sum down; what it plans must be equal to them, or it could not go on with them."""
    path = write_config(second(random_sd3, tmp_path, sources["lora"]), tmp_path / "config.yaml")
    (config,) = load_candidates([Candidate("one", str(path), ())], None)
    assert config == pin_initial(config) and config.model.init_from.sha256 is not None
