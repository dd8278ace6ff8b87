"""The quickstart on the trained pipeline: it learns, and what it says of itself is so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from diffrl.config import load_config
from diffrl.cost.plan import make_plan
from diffrl.lifecycle import train
from tests.training.harness import undrawn

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]


def run(monkeypatch, tmp_path, *overrides):
    monkeypatch.chdir(ROOT)
    config = load_config("configs/quickstart.yaml", [f"run.dir={tmp_path}", *overrides])
    with undrawn():
        run_dir = train(config, Console(quiet=True))
    return config, json.loads((run_dir / "summary.json").read_text())


def test_twenty_iterations_raise_the_held_out_strict_pass(monkeypatch, tmp_path):
    short = ("run.iterations=20", "train.warmup_updates=4", "run.eval_every=null", "eval.samples=200")
    config, summary = run(monkeypatch, tmp_path, *short)
    held_out, evaluations = summary["held_out"], summary["network_evaluations"]
    assert 0.15 <= held_out["strict_before"] <= 0.35
    assert held_out["strict_after"] >= held_out["strict_before"] + 0.08
    assert held_out["partial_after"] > held_out["partial_before"]
    made = evaluations["counted"] + evaluations["skipped"]
    assert made == evaluations["planned"] == make_plan(config).total_network_evaluations
    assert summary["on_policy_error"] < 1e-5


@pytest.mark.slow
def test_the_whole_quickstart_gains_what_the_readme_says(monkeypatch, tmp_path):
    _, summary = run(monkeypatch, tmp_path)
    assert summary["held_out"]["strict_after"] >= summary["held_out"]["strict_before"] + 0.3
    assert summary["peak_memory_bytes"] < 3 * 2**30
