"""The script of the results page: its groups can be compared, and its tables say what the comparisons say."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest
from rich.console import Console
from scipy import stats

from diffrl.config import load_config
from diffrl.studies.compare import collect
from diffrl.studies.compare.archive import pack, unpack
from diffrl.studies.compare.arguments import load_candidates, parse_candidates
from tests.studies.test_compare_pairs import row, write
from tests.studies.test_compare_tables import fake_comparison
from tests.tiers import daily

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "configs" / "tiny-sd3" / "flow_grpo.yaml"
sys.path.insert(0, str(ROOT / "scripts"))  # as for a script that is run
SPEC = importlib.util.spec_from_file_location("reproduce_results", ROOT / "scripts" / "reproduce_results.py")
script = importlib.util.module_from_spec(SPEC)
sys.modules["reproduce_results"] = script  # dataclasses look their module up
SPEC.loader.exec_module(script)
sys.path.remove(str(ROOT / "scripts"))

SCORES = {
    "plain": [0.50, 0.52, 0.55, 0.49, 0.51],
    "better": [0.60, 0.63, 0.66, 0.60, 0.60],
    "same": [0.53, 0.50, 0.56, 0.50, 0.50],
}
BANDS = sys.modules["measuring.bands"]
GROUP = script.Group(dict.fromkeys(SCORES, ""), 40_000, 5, {"Pays?": (("plain", "better"), ("plain", "same"))})


@pytest.mark.parametrize("name", script.GROUPS)
def test_groups_are_paired_and_ask_for_what_they_train(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    group = script.GROUPS[name]
    assert load_candidates(parse_candidates(script.request(group, Path("out"), 1).configs), None)
    assert {label for pairs in group.questions.values() for pair in pairs for label in pair} <= set(group.arms)


KEPT = sorted({path.stem for path in (ROOT / script.MEASURED).glob("*.jsonl")} & set(script.GROUPS))


@pytest.mark.parametrize("kept", daily(KEPT, ["regimes-shapes", "nodes-shapes"]))
def test_kept_numbers_are_of_the_arms_that_the_script_names(kept, tmp_path, monkeypatch):
    """Or it could not go on with them: what differs is refused."""
    monkeypatch.chdir(ROOT)
    unpack(script.MEASURED / f"{kept}.jsonl", tmp_path / "again")
    request = script.request(script.GROUPS[kept], tmp_path / "again", 1)
    script.compare(request, Console(quiet=True), dry_run=True)
    assert all(arm.runs for arm in collect(tmp_path / "again").arms)


def measure(out, scores):
    """Five seeds of each arm, each with its number on the report split; the second reward is worth half of it."""
    curve = [(0, 0, 0.0, 0.2), (40, 4000, 20.0, 0.4)]
    fake_comparison(out, {label: [curve] * 5 for label in scores}, 5)
    state = json.loads((out / "state.json").read_text())
    for entry in state["configurations"]:
        entry |= {"path": str(CONFIG), "overrides": [], "iteration_cost": 1.0, "iteration_seconds": None}
        entry["config"] = load_config(CONFIG).model_dump(mode="json")
    (out / "state.json").write_text(json.dumps(state))
    for label, values in scores.items():
        for number, score in enumerate(values):
            line = row(score, n=500, failed=0, steps=10, noise_seed=1234)
            line["means"] = {"shapes_strict": score, "shapes": score / 2, "shapes/colour": 1.0}
            write(out, label, number, line)
    return out


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Three arms."""
    monkeypatch.chdir(ROOT)
    return measure(tmp_path / "shapes", SCORES)


def test_answers_are_paired_and_adjusted_for_the_questions_alone(measured):
    table = script.answers(GROUP, collect(measured)).splitlines()[2:]
    oracle = [stats.ttest_rel(SCORES[name], SCORES["plain"]) for name in ("better", "same")]
    raw = [one.pvalue for one in oracle]
    assert raw[0] < raw[1]
    adjusted = [min(1, 2 * raw[0]), max(min(1, 2 * raw[0]), raw[1])]  # Holm, of two
    for line, one, p, holm in zip(table, oracle, raw, adjusted, strict=True):
        low, high = one.confidence_interval(0.95)
        assert f"{low:+.3f} to {high:+.3f} | {p:.2g} | {holm:.2g}" in line
    assert table[0].startswith("| Pays? | better less plain | 5 | +0.104 ") and table[0].endswith("| higher |")
    assert table[1].startswith("|  | same less plain ") and "not resolved below" in table[1]


def test_scores_are_ranked_with_the_other_rewards(measured):
    lines = script.scores(collect(measured)).splitlines()
    assert lines[0].startswith("| arm | seeds | shapes_strict | shapes | iterations |")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| better", "| same", "| plain"]
    assert "| better | 5 | 0.618 ± 0.033 | 0.309 | 40 | 4,000 | 20 |" in lines


def test_a_page_gets_its_tables_and_figures(measured, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    shared = "![power](figures/shapes-power.png)\n<!-- overview -->\n<!-- /overview -->\n"
    page.write_text(f"before\n<!-- shapes -->\nwas here before\n<!-- /shapes -->\n{shared}")
    monkeypatch.setitem(script.GROUPS, "shapes", GROUP)
    options = ["--out", str(tmp_path), "--only", "shapes", "--report-only", "--write", str(page)]
    monkeypatch.setattr(sys, "argv", ["reproduce_results.py", *options])
    script.main()
    text = page.read_text()
    assert "better less plain" in text and "was here before" not in text and text.startswith("before\n")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"shapes-power.png"}  # what the page shows
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="must hold <!-- shapes -->"):
        script.main()


def test_the_overview_has_every_preset_where_it_was_measured_first(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    plain, better, same = SCORES.values()
    found = {
        "shapes": collect(measure(tmp_path / "a", {"diffrl": better, "chains, nft": plain, "tree, nft": same})),
        "chain-shapes": collect(
            measure(tmp_path / "b", {"chain": same, "diffrl": plain, "chain, random leaves": same})
        ),
        "tuned-guided-shapes": collect(measure(tmp_path / "c", {"nft": better, "diffrl": same})),
    }
    rows = [line.strip("| ").split(" | ") for line in script.overview(found, {"shapes": 0.53}).splitlines()[2:]]
    assert [row[0] for row in rows] == ["the base with guidance 3, not trained", "diffusion_nft", "diffrl", "chain"]
    assert rows[2][4] == "0.618 ± 0.033, 5 seeds" and rows[2][3].startswith("0.518 ±") and rows[0][1] == "0.530"
    assert rows[1][3].startswith("0.618 ±") and rows[1][4].startswith("0.514 ±")


def test_a_pool_is_held_to_none_and_to_a_random_choice(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    scores = dict(zip(("no pool", "pool, best and worst", "pool, random"), SCORES.values(), strict=True))
    comparison = collect(measure(tmp_path / "pool", scores))
    lines = script.pool_table({0.25: comparison, 0.1: comparison}).splitlines()
    assert len(lines) == 4 and [line.split(" | ")[0] for line in lines[2:]] == ["| 0.25", "| 0.1"]
    none, best, random = SCORES.values()
    for cell, other in zip(lines[2].split(" | ")[5:], (none, random), strict=True):
        oracle = stats.ttest_rel(best, other)
        low, high = oracle.confidence_interval(0.95)
        mean = sum(best) / 5 - sum(other) / 5
        assert cell.removesuffix(" |") == f"{mean:+.3f} ({low:+.3f} to {high:+.3f}), 5 seeds"


def test_diffrl_at_small_budgets_is_held_to_each_rival_at_the_largest(tmp_path, monkeypatch):
    """By hand: better than the first rival with the smallest budget already, and on the way to the second."""
    monkeypatch.chdir(ROOT)
    plain, better, _ = SCORES.values()
    midway = [one + 0.05 for one in better]
    weaker = [one - 0.2 - 0.01 * number for number, one in enumerate(better)]
    found = {
        60_000: collect(measure(tmp_path / "c", {"weak": weaker, "strong": midway})),
        6_000: collect(measure(tmp_path / "a", {"diffrl": better, "weak": plain, "other": plain})),
        20_000: collect(measure(tmp_path / "b", {"diffrl": [one + 0.1 for one in better]})),
    }
    at = [line.split(" | ") for line in script.budgets_table(found).splitlines()[2:]]
    assert [line[0] for line in at] == ["| diffrl", "| weak"]  # what was measured at one budget is left out
    assert at[1][1].startswith("0.514 ±") and at[1][3].startswith("0.398 ±")
    lines = [line.split(" | ") for line in script.fewer_tables(found).splitlines()]
    weak, strong = (next(line for line in lines if line[0] == f"| {name}") for name in ("weak", "strong"))
    assert weak[2:4] == ["6,000 or fewer", "10.0 or more"] and weak[4].startswith("10.0 or more to 10.0 or more")
    middle = math.sqrt(6_000 * 20_000)
    assert float(strong[2].replace(",", "")) == pytest.approx(middle, rel=0.01)
    assert float(strong[3]) == pytest.approx(60_000 / middle, abs=0.06)
    low, high = stats.ttest_rel(better, weaker).confidence_interval(0.95)
    first = next(line for line in lines if line[:2] == ["| 6,000", "weak"])
    assert first[3] == "10" and f"({low:+.3f} to {high:+.3f})" in first[4]


def test_the_budget_of_an_equal_score_is_where_the_paired_test_turns():
    """Straight lines in the logarithm, of seeds that differ by their height: the ends solve the t-test by hand."""
    tables = sys.modules["measuring.tables"]
    offsets, noise = (-0.02, 0.0, 0.02, 0.01), (0.004, -0.006, 0.01, -0.002)
    ours = {b: {n: 0.1 * math.log10(b) + one for n, one in enumerate(offsets)} for b in (1_000, 10_000, 100_000)}
    heights = [one + shift for one, shift in zip(offsets, noise, strict=True)]
    theirs = {n: 0.1 * math.log10(20_000) + height for n, height in enumerate(heights)}
    found = tables.budget_for(ours, theirs, points=20_001)
    low, high = stats.ttest_1samp(noise, 0.0).confidence_interval(0.95)
    for budget, shift in zip(found, (low, sum(noise) / 4, high), strict=True):
        assert budget == pytest.approx(20_000 * 10 ** (shift / 0.1), rel=1e-3)
    always = tables.budget_for(ours, {n: 0.0 for n in range(4)})
    never = tables.budget_for(ours, {n: 1.0 for n in range(4)})
    assert always == (1_000, 1_000, 1_000) and never == (None, None, None)


@pytest.mark.parametrize("options", [["--seeds", "0"], ["--check", "--go-on"], ["--report-only"]], ids=" ".join)
def test_what_cannot_be_done_is_said_in_one_sentence(options, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["reproduce_results.py", "--only", "shapes", "--out", str(tmp_path), *options])
    with pytest.raises(SystemExit) as stop:
        script.main()
    assert stop.value.code == 2 and capsys.readouterr().err.count("error: ") == 1


def test_the_page_has_room_for_every_group():
    script.require_room(ROOT / "docs" / "results.md", script.GROUPS)


def test_bands_are_prediction_intervals(measured, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pack(measured, tmp_path / "shapes.jsonl")
    assert script.strayed(collect(measured), tmp_path / "shapes.jsonl") == []
    low, high = BANDS.band(SCORES["plain"], 5)
    draws = stats.norm.rvs(0.514, 0.0230, size=(4000, 10), random_state=0)  # of five seeds, then of five more
    inside = [BANDS.band(list(ten[:5]), 5) for ten in draws]
    share = sum(a <= ten[5:].mean() <= b for (a, b), ten in zip(inside, draws, strict=True)) / len(draws)
    assert share == pytest.approx(0.95, abs=0.015)
    moved = measured / "plain"
    for number in range(5):
        write(measured, "plain", number, row(high + 0.01, n=500, failed=0, steps=10, noise_seed=1234))
    told = script.strayed(collect(measured), tmp_path / "shapes.jsonl")
    assert moved.is_dir() and len(told) == 1 and told[0].startswith("plain: ") and f"{low:.3f} to {high:.3f}" in told[0]
