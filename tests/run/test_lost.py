"""What is missing or damaged in a run's directory is missed, said, and never made worse by resuming."""

import hashlib
import json
import os
import shutil
from functools import partial

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from diffrl.cli import main
from diffrl.config import load_config
from diffrl.errors import CheckpointError, ConfigError, DiffrlError, GuardStop
from diffrl.preflight.preview import Preview
from diffrl.preflight.stages import open_session
from diffrl.run.resume import find_checkpoint, lost_history, require_fit
from diffrl.run.set_aside import set_aside
from diffrl.run.summary import held_out_change
from diffrl.tracking.store import SampleStore, StoredSample
from diffrl.training.loop import Trainer
from diffrl.trees.write import drop_trees
from tests.training.harness import TREES, assert_same_run, go_on, rows_of, settings, start, summary_of


@pytest.fixture(scope="module")
def finished(random_sd3, tmp_path_factory):
    """Three iterations, each with its checkpoint."""
    data = settings(random_sd3, tmp_path_factory.mktemp("finished"), track=TREES)
    data["run"] |= {"iterations": 3, "checkpoint_every": 1}
    return start(data)[0]


@pytest.fixture(scope="module")
def session(finished, tmp_path_factory):
    return open_session(Preview(load_config(finished / "config.yaml")), tmp_path_factory.mktemp("session"))


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def everything(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(capsys, *arguments):
    """One message and exit code 2; the message."""
    with pytest.raises(SystemExit) as ended:
        main(["train", *map(str, arguments)])
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and shown.count("error:") == 1 and "Traceback" not in shown
    return shown


def find(run, check=lambda checkpoint: None, said=None):
    report = pytest.fail if said is None else said.append
    return find_checkpoint(run, load_config(run / "config.yaml"), check, report)


# --- checkpoints that are gone ---------------------------------------------------------------------------------------


def remove_them(run):
    shutil.rmtree(run / "checkpoints")


def empty_the_folder(run):
    remove_them(run)
    (run / "checkpoints").mkdir()


def remove_the_record_too(run):
    """As in a run of an older diffrl: more was trained than goes without a checkpoint."""
    remove_them(run)
    (run / "checkpoints.json").unlink()


def leave_nothing_but_the_record(run):
    remove_them(run)
    (run / "metrics.jsonl").unlink()
    shutil.rmtree(run / "samples")
    shutil.rmtree(run / "trees")


@pytest.mark.parametrize(
    "loss",
    [remove_them, empty_the_folder, remove_the_record_too, leave_nothing_but_the_record],
    ids=lambda f: f.__name__,
)
def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(run, loss):
    loss(run)
    with pytest.raises(CheckpointError, match="--from-start"):
        find(run)


@pytest.mark.long
def test_refusing_touches_nothing_and_beginning_anew_loses_nothing(run, finished, capsys):
    remove_them(run)
    (run / "notes.txt").write_text("the user's own")
    before = everything(run)
    assert "--from-start" in refused(capsys, "--resume", run)
    assert everything(run).items() >= before.items()
    said = go_on(run, from_start=True)
    assert "before-1" in said
    kept = everything(run / "before-1")
    assert all(kept[path] == content for path, content in before.items() if path.name != ".lock")
    assert_same_run(run, finished)


def test_half_a_checkpoint_is_not_set_aside(run):
    """What a kill in the middle of a save has left is of no use to anybody, and would lie there for good."""
    half = run / "checkpoints" / ".writing-step-000009"
    half.mkdir()
    (half / "policy.safetensors").write_bytes(b"half")
    set_aside(run)
    kept = [path.name for path in (run / "before-1" / "checkpoints").iterdir()]
    assert kept and all(name.startswith("step-") for name in kept)


def test_from_start_goes_with_resume_alone(capsys, tmp_path):
    assert "--resume" in refused(capsys, tmp_path / "config.yaml", "--from-start")


def test_a_disk_that_refuses_to_set_aside_keeps_everything_in_place(run, monkeypatch):
    before = everything(run)
    monkeypatch.setattr(shutil, "copy2", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(DiffrlError, match="cannot be set aside"):
        set_aside(run, 2)
    assert everything(run) == before


# --- checkpoints that are not what they say --------------------------------------------------------------------------


def seal(checkpoint):
    """Make the manifest agree with the files."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for name in manifest["files"]:
        content = (checkpoint / name).read_bytes()
        manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def in_state(*path, to=None):
    """Set a value of the state, or without one remove it."""

    def change(checkpoint):
        content = json.loads((checkpoint / "state.json").read_text())
        here = content
        for key in path[:-1]:
            here = here[key]
        if to is None:
            del here[path[-1]]
        else:
            here[path[-1]] = to
        (checkpoint / "state.json").write_text(json.dumps(content))

    return change


def in_tensors(group, change):
    def changed(checkpoint):
        file = checkpoint / f"{group}.safetensors"
        save_file({name: change(name, tensor) for name, tensor in load_file(file).items()}, file)

    return changed


def moments_in_half(name, tensor):
    return tensor.bfloat16() if name.endswith("exp_avg") else tensor


WRONG = {
    "a missing counter": (in_state("state", "updates"), "updates"),
    "a counter of another type": (in_state("state", "counts", to=[1]), "counts"),
    "a missing watch": (in_state("state", "fidelity", "low"), "fidelity"),
    "no state at all": (in_state("state", to=[]), "state"),
    "another step": (in_state("step", to=2), "of step 2"),
    "another iteration": (in_state("state", "iteration", to=2), "iteration 2"),
    "no optimizer": (in_state("state", "optimizer", to={}), "optimizer"),
    "no generators": (in_state("state", "random", to={"torch": 1}), "generators"),
    "rounded weights": (in_tensors("policy", lambda name, tensor: tensor.bfloat16()), "bfloat16"),
    "rounded moments": (in_tensors("optimizer", moments_in_half), "bfloat16"),
    "other generators": (in_tensors("random", lambda name, tensor: tensor[:7].contiguous()), "generators"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_whole_checkpoint_of_wrong_content_is_passed_over(run, session, what):
    change, word = WRONG[what]
    change(run / "checkpoints/step-000003")
    seal(run / "checkpoints/step-000003")
    generators, said = torch.get_rng_state(), []
    found = find(run, partial(require_fit, session), said)
    assert found.step == 2 and len(said) == 1 and "step-000003" in said[0] and word in said[0]
    assert torch.equal(torch.get_rng_state(), generators)  # looking at it has taken nothing


def test_an_untouched_one_is_taken_without_a_word(run, session):
    assert find(run, partial(require_fit, session)).step == 3


# --- records that are gone -------------------------------------------------------------------------------------------


def test_what_is_lost_of_the_history_is_said(run):
    assert lost_history(run, 3) == []
    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(rows[2:]))
    for file in run.glob("samples.sqlite*"):
        file.unlink()
    metrics, samples = lost_history(run, 3)
    assert "metrics.jsonl has lost 2 iterations, from 0 to 1" in metrics
    assert "samples.sqlite has lost 3 iterations, from 0 to 2" in samples
    (run / "samples.sqlite").write_bytes(b"no index" * 100)
    with pytest.raises(DiffrlError, match="move that file away"):
        lost_history(run, 3)


@pytest.mark.parametrize(
    "row", ["{}", '{"iteration": "3"}', '{"iteration": [3]}', '{"iteration": 3, "reward/mean": "x"}']
)
def test_a_row_that_no_run_wrote_is_one_message(run, row):
    with (run / "metrics.jsonl").open("a") as file:
        file.write(row + "\n")
    with pytest.raises(DiffrlError, match="line 5 is no row"):
        lost_history(run, 3)


def test_a_run_without_its_records_goes_on(run, finished):
    """Emptied metrics, no samples, a damaged environment, a log that nobody can write to: none of it is training."""
    (run / "metrics.jsonl").write_text("")
    for file in run.glob("samples.sqlite*"):
        file.unlink()
    (run / "environment.json").write_text('{"versions": 3')
    shutil.rmtree(run / "checkpoints/step-000003")
    said = go_on(run)
    assert "metrics.jsonl has lost 3" in said and "samples.sqlite has lost 2" in said
    assert "environment.json was missing or damaged" in said
    assert (run / "environment.damaged.json").read_text() == '{"versions": 3'
    assert json.loads((run / "environment.json").read_text())["device"] == "cpu"
    assert rows_of(run) == rows_of(finished)[3:]
    held_out = summary_of(run)["held_out"]
    assert all((value is None) == name.endswith("_before") for name, value in held_out.items())


def test_a_run_without_its_pictures_is_finished_all_the_same(run):
    shutil.rmtree(run / "samples")
    (run / "summary.json").unlink()
    (run / "before_after.png").unlink()
    said = go_on(run)
    assert "samples/ has lost" in said and "before_after.png was left out" in said
    assert (run / "summary.json").exists() and not (run / "before_after.png").exists()


def test_before_training_is_the_evaluation_before_training_and_no_other():
    rows = [{"iteration": 4, "held_out/x": 0.5}, {"iteration": 8, "held_out/x": 0.7}]
    assert held_out_change(rows, ["x"]) == {"x_before": None, "x_after": 0.7}


def test_links_among_pictures_and_trees_are_removed_and_what_they_point_to_stays(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text("mine")
    with SampleStore(tmp_path / "run") as store:
        store.write([StoredSample("train", 4, 0, 0, 0, "a", picture=torch.zeros(3, 8, 8, dtype=torch.uint8))])
        (tmp_path / "run/samples/train-000005").symlink_to(outside)
        (tmp_path / "run/samples/train-000006").write_text("a file")
        (tmp_path / "run/trees").mkdir()
        (tmp_path / "run/trees/000005-0").symlink_to(outside)
        store.truncate_after(4, ["train"])
    drop_trees(tmp_path / "run", 4)
    assert os.listdir(tmp_path / "run/samples") == ["train-000004"] and not os.listdir(tmp_path / "run/trees")
    assert (outside / "mine.txt").read_text() == "mine"


def test_a_run_whose_directory_is_removed_while_it_trains_stops(random_sd3, tmp_path, monkeypatch):
    iterate, calls = Trainer.iterate, []

    def removed(trainer):
        calls.append(trainer.iteration)
        if len(calls) == 2:
            shutil.rmtree(tmp_path / "run")
        return iterate(trainer)

    monkeypatch.setattr(Trainer, "iterate", removed)
    with pytest.raises(GuardStop, match="removed, moved or replaced"):
        start(settings(random_sd3, tmp_path, run={"iterations": 5}))
    assert calls == [0, 1]
    assert not (tmp_path / "run").exists()


# --- an edited configuration -----------------------------------------------------------------------------------------


def edit(run, *path, to):
    data = yaml.safe_load((run / "config.yaml").read_text())
    here = data
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = to
    (run / "config.yaml").write_text(yaml.safe_dump(data))


@pytest.mark.parametrize(
    ("path", "to", "named"),
    [
        (("train", "learning_rate"), 0.5, "train.learning_rate was 0.0001 and is 0.5"),
        (("rewards", 0, "weight"), 2.0, "rewards.0.weight was 1.0 and is 2.0"),
        (("rollout", "tree", "roots"), 4, "rollout.tree.roots was 3 and is 4"),
    ],
)
def test_a_run_does_not_go_on_with_another_configuration(run, path, to, named):
    edit(run, *path, to=to)
    with pytest.raises(ConfigError, match=named):
        find(run)


def test_an_edited_configuration_is_one_message_and_nothing_is_touched(run, capsys):
    edit(run, "objective", "clip", to=0.5)
    before = everything(run)
    assert "objective.clip" in refused(capsys, "--resume", run)
    assert everything(run).items() >= before.items()


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("run", "iterations"), 7),
        (("run", "keep_checkpoints"), None),
        (("guards", "kl", "limit"), 3.0),
        (("track", "trees"), None),
        (("eval", "rewards", 0, "timeout"), 9.0),
        (("train", "micro_batch"), 1),
    ],
)
def test_what_training_does_not_depend_on_may_change_and_is_named(run, path, to):
    edit(run, *path, to=to)
    said = []
    assert find(run, said=said).step == 3
    assert len(said) == 1 and ".".join(map(str, path)) in said[0]


def test_a_run_may_be_moved_and_renamed(run):
    moved = shutil.move(run, run.with_name("elsewhere"))
    edit(moved, "run", "name", to="elsewhere")
    assert find(moved).step == 3
