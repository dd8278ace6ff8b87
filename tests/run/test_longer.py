"""A run that goes on beyond its end trains what the longer run would have trained, and loses nothing on the way."""

import json
import os
import shutil

import pytest

import diffrl.lifecycle as run_module
from diffrl.cli import main
from diffrl.config import load_config
from diffrl.run import completion
from diffrl.run.resume import is_complete
from diffrl.run.summary import unplanned_evaluations
from diffrl.training.loop import Trainer
from tests.run.test_resume import Crash, crashing
from tests.tiers import daily
from tests.training.harness import go_on, last_checkpoint, rows_of, samples_of, settings, start, summary_of

LONG, END = 5, 3


def of_length(iterations, pipeline, directory, schedule="cosine", **run):
    """Two updates an iteration, the first of all at half the rate; a checkpoint after every second and the last."""
    train = {"learning_rate": 1e-2, "schedule": schedule, "warmup_updates": 2, "ema": {"decay": 0.7}}
    lora = {"family": "sd3", "path": str(pipeline), "lora": {"rank": 2, "alpha": 3, "targets": ["to_q"]}}
    data = settings(pipeline, directory, model=lora, train=train)
    data["run"] |= {"iterations": iterations, "eval_every": None, **run}
    return data


@pytest.fixture(scope="module")
def finished(random_sd3, tmp_path_factory):
    return start(of_length(END, random_sd3, tmp_path_factory.mktemp("finished")), drawn=True)[0]


@pytest.fixture(scope="module")
def straight(random_sd3, tmp_path_factory):
    return start(of_length(LONG, random_sd3, tmp_path_factory.mktemp("straight")))[0]


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def rates(run_dir):
    return [row["update/learning_rate"] for row in rows_of(run_dir)[1:]]


def longer(run, *more):
    return go_on(run, f"run.iterations={LONG}", *more)


def iterations_of(run):
    return load_config(run / "config.yaml").run.iterations


@pytest.mark.long
def test_with_a_constant_rate_it_is_the_run_that_was_longer_from_the_start(random_sd3, tmp_path):
    short, _ = start(of_length(END, random_sd3, tmp_path / "short", schedule="constant"))
    whole, _ = start(of_length(LONG, random_sd3, tmp_path / "whole", schedule="constant"))
    said = longer(short)
    assert "The learning rate is 0.01, as it would have been (constant)." in said
    step, tensors, state = last_checkpoint(short)
    assert (step, tensors) == last_checkpoint(whole)[:2] and state["updates"] == 2 * LONG
    trained = [sample for sample in samples_of(short) if sample[0].stage == "train"]
    assert trained == [sample for sample in samples_of(whole) if sample[0].stage == "train"]


@pytest.mark.long
def test_a_cosine_goes_on_as_the_longer_one_has_it(run, finished, straight):
    said = longer(run)
    assert rates(run) == pytest.approx(rates(finished) + rates(straight)[END:])
    assert rates(run)[END] > rates(finished)[-1]
    assert f"{LONG} iterations are to be trained in place of {END}." in said and "cosine schedule over 5" in said
    assert [row["iteration"] for row in rows_of(run)] == list(range(LONG + 1))
    assert said.splitlines().count(f"Resuming {run} from iteration {END} of {LONG}.") == 1
    log = (run / "log.txt").read_text()
    assert "5 iterations are to be trained in place of 3." in log


def test_it_is_written_down_and_the_former_end_is_kept(run, finished):
    ending = {name: (run / name).read_bytes() for name in ("summary.json", "report.html", "before_after.png")}
    longer(run)
    assert iterations_of(run) == LONG and summary_of(run)["iterations"] == LONG
    assert {name: (run / "before-1" / name).read_bytes() for name in ending} == ending
    (entry,) = json.loads((run / "environment.json").read_text())["resumed"]
    assert entry["changed"] == {"after_iteration": END, "run.iterations": {"was": END, "is": LONG}}
    assert rows_of(run)[: END + 1] == rows_of(finished)
    found = summary_of(run)["network_evaluations"]  # one evaluation more than a straight run: that of the former end
    assert found["counted"] + found["skipped"] == found["planned"]
    assert unplanned_evaluations(rows_of(run), load_config(run / "config.yaml").run) == 1


MOMENTS = {
    "before config.yaml is written": (run_module, "write_config", True),
    "after it": (run_module, "write_config", False),
    "while the former end is moved": (run_module, "note_resumption", True),
}


@pytest.mark.parametrize("moment", daily(MOMENTS, ["after it"], list(MOMENTS)[:1]))
def test_a_kill_on_the_way_loses_nothing(run, finished, tmp_path, moment):
    owner, name, before = MOMENTS[moment]
    with crashing(owner, name, 1, before):
        longer(run)
    if "before config" in moment:
        assert iterations_of(run) == END
        assert "is finished" in go_on(run)
        longer(run)
    else:
        assert iterations_of(run) == LONG
        go_on(run)
    assert (run / "before-1/summary.json").exists() and summary_of(run)["iterations"] == LONG
    other = shutil.copytree(finished, tmp_path / "other")
    longer(other)
    assert rows_of(run) == rows_of(other) and last_checkpoint(run) == last_checkpoint(other)


def test_before_its_end_it_goes_on_from_its_newest_checkpoint(random_sd3, tmp_path, straight):
    """Planned for 7, killed in the fourth, shortened to 5: the third was trained at another rate, and is kept."""
    with crashing(Trainer, "iterate", 4):
        start(of_length(7, random_sd3, tmp_path))
    before = rows_of(tmp_path / "run")
    said = longer(tmp_path / "run")
    assert "5 iterations are to be trained in place of 7." in said and "from iteration 2 of 5" in said
    assert [row["iteration"] for row in before] == [0, 1, 2, 3] and rows_of(tmp_path / "run/before-1") == before
    assert rates(tmp_path / "run")[2:] == pytest.approx(rates(straight)[2:])
    assert rows_of(tmp_path / "run")[:3] == before[:3] and len(rows_of(tmp_path / "run")) == LONG + 1


def test_fewer_iterations_than_are_trained_are_refused_and_nothing_is_touched(run, monkeypatch, capsys):
    monkeypatch.setattr(run_module, "open_session", lambda *args: pytest.fail("the model was loaded"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as ended:
        main(["train", "--resume", str(run), f"run.iterations={END - 1}"])
    assert ended.value.code == 2 and f"run.iterations must be at least {END + 1}" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def damage(run):
    file = run / f"checkpoints/step-{END:06d}/policy.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


UNFINISHED = {
    "a damaged checkpoint": damage,
    "no checkpoint": lambda run: shutil.rmtree(run / f"checkpoints/step-{END:06d}"),
    "no summary": lambda run: (run / "summary.json").unlink(),
    "no report": lambda run: (run / "report.html").unlink(),
    "no rows": lambda run: (run / "metrics.jsonl").write_text(""),
    "a summary of another end": lambda run: (run / "summary.json").write_text('{"iterations": 2}'),
}


def test_whether_a_run_is_finished_does_not_hang_on_the_times_of_its_files(run, monkeypatch):
    """A copy has other times, and by a clock that went back the report, which is written last, is the older file."""
    config = load_config(run / "config.yaml")
    os.utime(run / "report.html", (1e9, 1e9))
    assert is_complete(run, config)
    (run / "rewards.json").unlink()

    def die(*_):
        raise Crash

    monkeypatch.setattr(completion, "print_summary", die)  # between the summary and the report
    with pytest.raises(Crash):
        go_on(run)
    assert (run / "summary.json").is_file() and (run / "rewards.json").is_file() and not is_complete(run, config)


@pytest.mark.parametrize("what", UNFINISHED)
def test_only_what_is_whole_is_finished(run, what):
    config = load_config(run / "config.yaml")
    assert is_complete(run, config)
    UNFINISHED[what](run)
    assert not is_complete(run, config)
