"""The benchmark of an iteration: its clock, its medians, what it stores, and a revision that is not there."""

import sys
import time
from pathlib import Path

import bench_iteration as bench
import pytest
import torch
from benching import take_turns
from measuring import iteration

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "configs/quickstart.yaml"


def test_waiting_is_wall_time_and_counts_for_the_innermost_phase():
    clock = iteration.ProcessClock(torch.device("cpu"))
    with clock("outer"):
        with clock("inner"):
            time.sleep(0.2)
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
    assert clock.seconds["inner"] >= 0.2 > clock.cpu_seconds["inner"]
    assert clock.cpu_seconds["outer"] >= 0.1 > clock.cpu_seconds["inner"]


def test_ratios_are_medians_of_the_turns_and_not_ratios_of_medians():
    def turn(cpu, share=0.5):
        return {"run": {"update": {"cpu": cpu, "share": share}}}

    turns = {"this": [turn(1.0), turn(2.0), turn(4.0)], "other": [turn(3.0), turn(2.0), turn(5.0)]}
    cpu, share = bench.summarise(turns)
    assert (cpu["this"], cpu["other"], cpu["ratio"]) == (2.0, 3.0, 1.25)
    assert share["this"] == 0.5 and "ratio" not in share


def test_turns_alternate_after_a_warm_up_that_does_not_count():
    order = []
    variants = {name: lambda name=name: order.append(name) or len(order) for name in "abc"}
    assert take_turns(variants, 2) == {"a": [4, 9], "b": [5, 8], "c": [6, 7]}
    assert "".join(order) == "abcabccba"


def test_a_revision_that_is_not_there_ends_in_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_iteration.py", "--against", "no-such-revision"])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
    assert "Got no-such-revision" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("late", "code"), [(0.012, 0), (0.0121, 1)])
def test_bookkeeping_that_grows_with_the_history_is_an_exit_code(monkeypatch, late, code):
    rows = [{"iteration": n, "seconds/other": 0.01 if n < 40 else late} for n in range(60)]
    monkeypatch.setattr(iteration, "train", lambda config, console: Path())
    monkeypatch.setattr(iteration, "read_metrics", lambda path: rows)
    monkeypatch.setattr(sys, "argv", ["bench_iteration.py", "--history", "59", "--configs", str(QUICKSTART)])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == code


@pytest.mark.long
def test_phases_add_up_and_bytes_are_those_of_the_tensors():
    small = ["prompts.per_iteration=2", "eval.samples=2", "run.eval_every=null"]
    rows = iteration.measure_run(str(QUICKSTART), small, 1)
    stored, whole = rows.pop("stored"), rows.pop("iteration")
    assert {"rollout", "decode", "reward", "credit", "update", "journal", "rest"} <= set(rows)
    assert sum(row["cpu"] for row in rows.values()) == pytest.approx(whole["cpu"])
    assert 0 < rows["rollout"]["share"] < 1 and 0 < rows["update"]["share"] < 1
    # Of each of 32 samples two steps, in latents of 4 x 8 x 8: 10 origins and 40 ends, and a little for each.
    latents = 50 * 4 * 8 * 8 * 4
    assert latents < stored["MiB"] * 2**20 < 1.1 * latents
    assert stored["bytes a sample-step"] * 64 == stored["MiB"] * 2**20
