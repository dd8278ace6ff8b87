"""The summary's numbers and the pictures."""

import html
import io
import math
import os
import re
import signal

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from diffrl.config.load import make_config
from diffrl.errors import GuardStop
from diffrl.gallery.links import ServerLinks
from diffrl.gallery.progress import progress
from diffrl.gallery.query import Query
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import Site
from diffrl.lifecycle import train
from diffrl.models.images import GREEN, RED
from diffrl.run.summary import held_out_change, program, write_before_after, write_curve
from diffrl.tracking.metrics import MetricsLog
from diffrl.tracking.store import SampleStore, StoredSample
from diffrl.training.loop import Trainer
from reward_models.common.errors import RewardError
from tests.training.harness import go_on, settings


def test_the_change_is_from_the_first_to_the_last_evaluation():
    rows = [
        {"iteration": 0, "held_out/shapes_strict": 0.25, "held_out/shapes_strict/partial": 0.5, "held_out/mine": 3.0},
        {"iteration": 1},
        {"iteration": 2, "held_out/shapes_strict": 0.375, "held_out/shapes_strict/partial": 0.625},
        {"iteration": 3, "held_out/shapes_strict": 0.75, "held_out/shapes_strict/partial": 0.875, "held_out/mine": 1.0},
    ]
    assert held_out_change(rows, ["shapes_strict", "mine"]) == {
        "strict_before": 0.25,
        "strict_after": 0.75,
        "mine_before": 3.0,
        "mine_after": 1.0,
        "partial_before": 0.5,
        "partial_after": 0.875,
    }
    assert held_out_change([], ["mine"]) == {"mine_before": None, "mine_after": None}


def sample(iteration, group, passed, shade):
    picture = torch.zeros(3, 8, 8, dtype=torch.uint8)
    picture[0] = shade
    address = {"stage": "eval", "iteration": iteration, "group": group, "root": 0, "seed": 1}
    return StoredSample(**address, prompt=f"prompt {group}", rewards={"r": float(passed)}, picture=picture)


def test_before_and_after_are_paired_by_prompt_and_noise(tmp_path):
    with SampleStore(tmp_path) as store:
        store.write([sample(0, 5, False, 10), sample(0, 6, True, 60)])
        store.write([sample(9, 6, True, 160), sample(9, 5, True, 110), sample(4, 5, True, 250)])
    assert write_before_after(tmp_path, "r", 9, tmp_path / "grid.png")
    colors = {color for _, color in Image.open(tmp_path / "grid.png").convert("RGB").getcolors(100_000)}
    assert {(shade, 0, 0) for shade in (10, 60, 110, 160)} <= colors and (250, 0, 0) not in colors


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_a_mark_goes_the_way_of_the_reward(tmp_path, higher_is_better):
    with SampleStore(tmp_path) as store:
        store.write([sample(0, 5, False, 10), sample(9, 5, False, 110)])
    write_before_after(tmp_path, "r", 9, tmp_path / "grid.png", higher_is_better)
    colors = {color for _, color in Image.open(tmp_path / "grid.png").convert("RGB").getcolors(100_000)}
    assert (GREEN in colors, RED in colors) == (not higher_is_better, higher_is_better)


def test_without_both_evaluations_there_is_no_grid(tmp_path):
    with SampleStore(tmp_path) as store:
        store.write([sample(0, 5, False, 10)])
    assert not write_before_after(tmp_path, "r", 9, tmp_path / "grid.png")
    assert not (tmp_path / "grid.png").exists()


def test_the_curve_is_a_picture_even_of_a_run_with_gaps(tmp_path):
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        log.append({"iteration": 0, "held_out/r": 0.1})
        log.append({"iteration": 1, "reward/mean": float("nan")})
        log.append({"iteration": 2, "reward/mean": 0.5, "held_out/r": 0.7})
    write_curve(tmp_path, ["r"], tmp_path / "curve.png")
    assert Image.open(tmp_path / "curve.png").size[0] > 500


def test_each_reward_has_axes_of_its_own(tmp_path):
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        log.append({"iteration": 0, "held_out/small": 0.1, "held_out/$large_{": 900.0})
        log.append({"iteration": 1, "reward/mean": 0.5, "reward/small": 0.2})
        log.append({"iteration": 2, "reward/mean": 0.6, "held_out/small": 0.9, "held_out/$large_{": 100.0})
    write_curve(tmp_path, ["small", "$large_{"], tmp_path / "three.png")
    write_curve(tmp_path, ["small"], tmp_path / "two.png")
    three, two = (Image.open(tmp_path / f"{name}.png").size for name in ("three", "two"))
    assert three[0] == pytest.approx(1.5 * two[0], abs=2) and three[1] == two[1]
    pixels = np.asarray(Image.open(tmp_path / "three.png").convert("RGB"))
    green = np.flatnonzero((pixels == (0x1B, 0x7F, 0x5C)).all(axis=2).any(axis=0))
    thirds = [sum(start <= 3 * x / three[0] < start + 1 for x in green) for start in range(3)]
    assert thirds[0] == 0 and min(thirds[1:]) > 100  # either spans its own axes, so neither is squeezed by the other


# --- report.html at the end of a run ---------------------------------------------------------------------------------


@pytest.fixture
def ends(random_sd3, tmp_path, monkeypatch):
    """A run of three iterations in which something happens before the second; how it ended, and what was said."""

    def end(happening=None, ends_with=(SystemExit, GuardStop)):
        iterate, calls = Trainer.iterate, []

        def iterating(trainer):
            calls.append(trainer)
            if len(calls) == 2 and happening:
                happening(trainer)
            return iterate(trainer)

        monkeypatch.setattr(Trainer, "iterate", iterating)
        shown = io.StringIO()
        data = settings(random_sd3, tmp_path, run={"iterations": 3})
        try:
            train(make_config(data), Console(file=shown, width=400))
            code = 0
        except ends_with as stop:
            code = stop.code if isinstance(stop, SystemExit) else str(stop)
        return tmp_path / "run", code, shown.getvalue()

    return end


def test_a_finished_run_leaves_its_report(ends):
    run, code, said = ends()
    page = (run / "report.html").read_text(encoding="utf-8")
    assert code == 0 and "finished</span> 3 of 3 iterations" in page and "data:image/webp" in page
    assert f"Everything on one page, to share: {run / 'report.html'}" in said


def test_a_run_that_a_guard_stopped_leaves_its_report(ends):
    def stop(trainer):
        raise GuardStop("The loss is nan. (guards.nonfinite_loss)")

    run, code, _ = ends(stop)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert code == "The loss is nan. (guards.nonfinite_loss)"
    assert "stopped by a guard</span> after 1 of 3 iterations" in page and code in page


def alarms_of(run):
    """The report's section of alarms as text."""
    section = (run / "report.html").read_text(encoding="utf-8").split('id="log"')[1].split("</section>")[0]
    return " ".join(re.sub("<[^>]*>", " ", html.unescape(section)).split())


@pytest.mark.long
def test_the_alarm_of_a_guard_that_names_no_setting_is_seen(ends):
    """Weights of NaN: the guard that sees them speaks of samples and of no setting."""

    def breaks(trainer):
        with torch.no_grad():
            for weight in trainer.session.policy.parameters.values():
                weight.fill_(math.nan)

    run, code, _ = ends(breaks)
    assert "6 of 6 samples hold NaN or inf after denoising" in code
    assert "samples hold NaN or inf" in alarms_of(run) and "No guard and no sentinel" not in alarms_of(run)
    course = progress(RunSource("run", run, "run"))
    assert (course.state, course.ended, course.done) == ("stopped", "stopped by a guard", 1)
    assert "stopped by a guard</span> after 1 of 3 iterations" in (run / "report.html").read_text(encoding="utf-8")
    overview = Site([RunSource("run", run, "run")], ServerLinks("test")).answer("run", Query({})).body
    assert "stopped by a guard after 1 of 3 iterations" in " ".join(re.sub("<[^>]*>", " ", overview).split())
    go_on(run)
    course = progress(RunSource("run", run, "run"))
    assert (course.state, course.ended, course.done) == ("finished", "", 3)
    log = [line for line in (run / "log.txt").read_text().splitlines() if line.startswith(("Stopped", "Resumed"))]
    assert log[0].startswith("Stopped: ") and log[1] == "Resumed after iteration 0."  # no checkpoint had been written


@pytest.mark.long
def test_a_run_that_an_error_ended_leaves_its_report(ends):
    error = RewardError("The reward's server has gone.")

    def fails(trainer):
        raise error

    run, code, _ = ends(fails, type(error))
    assert code == str(error) and str(error) in alarms_of(run)
    assert "ended by an error</span> after 1 of 3 iterations" in (run / "report.html").read_text(encoding="utf-8")


def test_an_error_stays_the_same_where_nothing_can_be_written(ends, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left")

    def fails(trainer):
        (tmp_path / "run" / "log.txt").unlink()
        (tmp_path / "run" / "log.txt").mkdir()  # where nobody can write
        monkeypatch.setattr("diffrl.gallery.report.write_report", full)
        trainer.messages.report("a message that is shown all the same")
        raise RewardError("gone")

    run, code, said = ends(fails, RewardError)
    assert code == "gone" and not (run / "report.html").exists()
    assert "a message that is shown all the same" in said and said.count("log.txt cannot be written") == 1


def test_an_interrupted_run_leaves_its_report(ends):
    number = signal.SIGTERM
    run, code, said = ends(lambda trainer: os.kill(os.getpid(), number))
    page = (run / "report.html").read_text(encoding="utf-8")
    assert code == 128 + number and "checkpoint written after iteration 2" in said
    assert "not finished</span> 2 of 3 iterations" in page and "checkpoint written after iteration 2" in page


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("the disk\nis full"), "report.html could not be written: OSError: the disk is full"),
        (KeyboardInterrupt(), "report.html was left out: interrupted while it was made."),
    ],
    ids=["disk", "interrupted"],
)
@pytest.mark.long
def test_a_report_that_cannot_be_written_is_told_in_a_line_and_changes_nothing(ends, monkeypatch, error, line):
    def failing(run_dir):
        raise error

    monkeypatch.setattr("diffrl.gallery.report.write_report", failing)
    run, code, said = ends()
    assert code == 0 and said.count(line) == 1
    assert (run / "log.txt").read_text().splitlines().count(line) == 1
    assert not (run / "report.html").exists() and "one page, to share" not in said
    assert (run / "summary.json").exists()


def test_commands_are_shown_as_they_can_be_typed(tmp_path, monkeypatch):
    """After `make demo` nothing has been activated: the shell would not find `diffrl` by its name, or another one."""
    script = tmp_path / ".venv" / "bin" / "diffrl"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.argv", [str(script)])
    assert program() == ".venv/bin/diffrl"
    monkeypatch.setenv("PATH", str(script.parent))
    assert program() == "diffrl"
    monkeypatch.setattr("sys.argv", ["scripts/train.py"])
    assert program() == "diffrl"
