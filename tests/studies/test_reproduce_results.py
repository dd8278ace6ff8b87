"""The script of the results page: its groups can be compared, and its tables say what the comparisons say."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest
from scipy import stats

from diffrl.config import load_config
from diffrl.studies.compare import collect
from diffrl.studies.compare.arguments import load_candidates, parse_candidates
from tests.studies.test_compare_pairs import SCORES, measured, row, write
from tests.studies.test_compare_tables import fake_comparison

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "configs" / "tiny-sd3" / "flow_grpo.yaml"
SPEC = importlib.util.spec_from_file_location("reproduce_results", ROOT / "scripts" / "reproduce_results.py")
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)


@pytest.mark.parametrize("name", script.GROUPS)
def test_groups_are_paired_and_keep_off_the_report_split(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert load_candidates(parse_candidates(script.GROUPS[name][0]), None)


def rising(*speeds):
    """A run a speed: from 0.2, straight on, for 40,000 evaluations."""
    return [[(i, 1000 * i, 2.0 * i, min(0.9, 0.2 + speed * i)) for i in range(0, 41, 5)] for speed in speeds]


def with_configs(out):
    """Give each arm of a comparison a whole configuration."""
    state = json.loads((out / "state.json").read_text())
    for entry in state["configurations"]:
        entry["config"] = load_config(CONFIG).model_dump(mode="json")
    (out / "state.json").write_text(json.dumps(state))


def test_factor_is_the_paired_interval_of_log_ratios(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    fake_comparison(tmp_path / "flow-80k", {"flow_grpo": rising(0.010, 0.008, 0.009)}, 3)
    fake_comparison(tmp_path / "tilt-40k", {"diffrl": rising(0.021, 0.015, 0.019)}, 3)
    for name in ("flow-80k", "tilt-40k"):
        with_configs(tmp_path / name)
    told = script.factor(tmp_path, "diffrl")
    ratios = [2.1, 15 / 8, 19 / 9]  # the same score at a speed so many times higher
    interval = stats.ttest_1samp([math.log(ratio) for ratio in ratios], 0).confidence_interval(0.95)
    low, high = math.exp(interval.low), math.exp(interval.high)
    assert f"2.0 times fewer evaluations (95 % interval {low:.1f} to {high:.1f}, 3 seeds)" in told
    (tmp_path / "slow").mkdir()
    fake_comparison(tmp_path / "slow" / "tilt-40k", {"diffrl": rising(0.021, 0.002, 0.019)}, 3)
    with_configs(tmp_path / "slow" / "tilt-40k")
    (tmp_path / "slow" / "flow-80k").symlink_to(tmp_path / "flow-80k")
    assert "reached by 2 of 3 seeds" in script.factor(tmp_path / "slow", "diffrl")


def test_costs_take_the_smaller_budget_that_was_enough(tmp_path):
    fake_comparison(tmp_path / "presets", {"fast": rising(0.02, 0.02), "flow_grpo": rising(0.02, 0.004)}, 2)
    fake_comparison(tmp_path / "long", {"flow_grpo": rising(0.009, 0.009)}, 2)
    table = script.costs(tmp_path, (0.5,))
    assert table.splitlines()[2] == "| fast | 15,000 (15,000 to 15,000) | 30 (30 to 30) |"
    assert table.splitlines()[3].startswith("| flow_grpo | 33,333 (33,333 to 33,333) |")
    assert script.costs(tmp_path, (0.58,)).splitlines()[3] == "| flow_grpo | reached by 0 of 2 | reached by 0 of 2 |"


def test_a_page_gets_its_tables_and_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    out = measured(tmp_path / "tilt-20k", SCORES)
    with_configs(out)
    for label, scores in SCORES.items():
        for number, score in enumerate(scores):
            write(out, label, number, row(score, n=500, failed=0, steps=10, noise_seed=1234))
    table, oracle = script.paired(collect(out), "two"), stats.ttest_rel(SCORES["two"], SCORES["one"])
    interval = oracle.confidence_interval(0.95)
    more = f"0.036 ± {(interval.high - interval.low) / 2:.3f} | {oracle.pvalue:.2g}"
    assert f"| one | 5 | 0.608 ± 0.104 | {more} | 40 | 4,000 | 5,120 | 20 |" in table  # 8 prompts, 16 pictures each
    assert "Power: with 5 seeds" in table
    measured(tmp_path / "presets", SCORES)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- presets -->\nwas here before\n<!-- /presets -->\nafter\n")
    options = ["--out", str(tmp_path), "--only", "presets", "--report-only", "--write", str(page)]
    monkeypatch.setattr(sys, "argv", ["reproduce_results.py", *options])
    script.main()
    text = page.read_text()
    assert "| two less one | 5 | +0.036 |" in text and "was here before" not in text and text.endswith("after\n")
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"presets.png", "presets-differences.png", "presets-power.png"}
