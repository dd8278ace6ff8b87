"""What a comparison makes of its runs, from directories with numbers that can be checked by hand."""

from __future__ import annotations

import json
import math

import pytest
from PIL import Image

from diffrl.cost.prices import parse_prices
from diffrl.errors import ConfigError, DiffrlError
from diffrl.studies.compare import collect, write_report
from diffrl.studies.compare.tables import markdown, table_rows

METRIC = "shapes_strict"


def fake_run(path, curve, iterations=40, updates=80, peak=2**30, metric=METRIC):
    """A finished run: (iteration, evaluations, seconds, score) of each held-out evaluation, rows between them too."""
    path.mkdir(parents=True)
    rows = [
        {"iteration": i, f"held_out/{metric}": score, "cost/evaluations": evaluations, "cost/seconds": seconds}
        for i, evaluations, seconds, score in curve
    ]
    rows.insert(1, {"iteration": 1, "reward/mean": 0.9, "cost/evaluations": 1, "cost/seconds": 0.1})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {"iterations": iterations, "updates": updates, "peak_memory_bytes": peak}
    (path / "summary.json").write_text(json.dumps(summary))


def fake_comparison(out, arms, seeds):
    """`arms` maps labels to curves, one a seed; None is a run that has not finished."""
    entries = [
        {"label": label, "folder": label, "config": {"eval": {"rewards": [{"name": METRIC}, {"name": "shapes"}]}}}
        | {"path": "a.yaml", "overrides": [], "iteration_cost": 100.0, "iteration_seconds": None}
        | {"iterations": 40, "eval_every": 20}
        for label in arms
    ]
    out.mkdir(exist_ok=True)
    state = {"budget": {"kind": "evaluations", "amount": 4000.0}, "evals": 2, "seeds": seeds, "configurations": entries}
    (out / "state.json").write_text(json.dumps(state))
    for label, curves in arms.items():
        for number, curve in enumerate(curves):
            if curve is not None:
                fake_run(out / label / f"seed-{number}", curve, peak=(number + 1) * 2**30)


@pytest.fixture
def comparison(tmp_path):
    """Steep reaches 0.6 in all three seeds, flat in one of two."""
    steep = [
        [(0, 0, 0.0, 0.2), (20, 2000, 10.0, 0.5), (40, 4000, 20.0, 0.7)],  # 0.6 at 3000 and 15 s
        [(0, 0, 0.0, 0.2), (20, 2000, 12.0, 0.6), (40, 4000, 24.0, 0.8)],  # at 2000 and 12 s
        [(0, 0, 0.0, 0.2), (20, 2000, 14.0, 0.7), (40, 4000, 28.0, 0.9)],  # at 1600 and 11.2 s
    ]
    flat = [
        [(0, 0, 0.0, 0.1), (20, 1900, 30.0, 0.3), (40, 3800, 60.0, 0.4)],
        [(0, 0, 0.0, 0.3), (20, 1900, 34.0, 0.5), (40, 3800, 70.0, 0.7)],
        None,
    ]
    fake_comparison(tmp_path / "all", {"steep": steep, "flat": flat}, seeds=3)
    return tmp_path / "all"


def test_what_the_seeds_have_in_common(comparison):
    steep, flat = collect(comparison).arms
    assert (steep.before, steep.after.mean, steep.gain) == pytest.approx((0.2, 0.8, 0.6))
    assert steep.spread == pytest.approx(0.2)
    assert steep.after.half_width == pytest.approx(
        4.303 * 0.1 / math.sqrt(3), rel=1e-4
    )  # t(0.975, 2) of a printed table
    assert (flat.before, flat.after.mean, flat.gain, flat.spread) == pytest.approx((0.2, 0.55, 0.35, 0.3))
    assert flat.after.half_width == pytest.approx(12.706 * 0.15, rel=1e-4)  # s = 0.3 / sqrt(2), n = 2
    assert (steep.cost("evaluations"), steep.cost("seconds")) == (4000, 24)
    assert (flat.cost("evaluations"), flat.cost("seconds")) == (3800, 65)
    assert (steep.peak_memory_bytes, flat.peak_memory_bytes) == (3 * 2**30, 2 * 2**30)


def test_cost_to_a_score(comparison):
    steep, flat = collect(comparison).arms
    found = steep.cost_to(0.6, "evaluations")  # the mean curve is at 0.2, 0.6 and 0.8
    assert (found.cost, found.reached, found.runs) == (pytest.approx(2000), 3, 3)
    half = 4.3027 * 0.1 / math.sqrt(3)  # of the mean after 2000 and 4000; before, all seeds are at 0.2
    assert found.low == pytest.approx(2000 * 0.4 / (0.4 + half), rel=1e-4)
    assert found.high is None  # 0.8 - 0.248 is below 0.6
    assert steep.cost_to(0.6, "seconds").cost == pytest.approx(12)
    missed = flat.cost_to(0.6, "evaluations")
    assert (missed.cost, missed.reached, missed.runs) == (None, 1, 2)


def test_prices_change_costs_and_nothing_else(tmp_path):
    """A pool in low precision costs what the table says; the run's own count is of equal prices."""
    fake_comparison(tmp_path, {"pool": [[(0, 0, 0, 0.1), (20, 2000, 5, 0.4), (40, 4000, 9, 0.8)]]}, seeds=1)
    state = json.loads((tmp_path / "state.json").read_text())
    state["configurations"][0]["config"] |= {
        "rollout": {"explore": {"precision": "nvfp4"}},
        "train": {"gradient_checkpointing": True},
    }
    (tmp_path / "state.json").write_text(json.dumps(state))
    path = tmp_path / "pool" / "seed-0" / "metrics.jsonl"
    spent = {"evaluations/explore": 1000, "evaluations/rollout": 100, "evaluations/update": 10, "evaluations/gate": 7}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | spent if row["iteration"] else row) + "\n" for row in lines))

    def costs(found):
        return [point.evaluations for point in found.arms[0].runs[0].curve]

    assert costs(collect(tmp_path)) == [0, 2000, 4000]
    cheap = collect(tmp_path, prices=parse_prices("b200-nvfp4"))  # rows at iterations 1, 20 and 40
    assert costs(cheap) == pytest.approx([0, 2 * (600 + 100 + 40), 3 * (600 + 100 + 40)])
    assert [p.score for p in cheap.arms[0].runs[0].curve] == [0.1, 0.4, 0.8]
    assert "by other prices than the budget's, equal" in cheap.notes[-1]
    assert "nvfp4 0.6 (" in markdown(cheap, 0.6) and "1.68 times" in markdown(cheap, 0.6)
    with pytest.raises(ConfigError, match="must know the precision that explores. Got nvfp4 with h100-bf16-fp8"):
        collect(tmp_path, prices=parse_prices("h100-bf16-fp8"))


def test_runs_that_have_not_finished_are_said(comparison):
    found = collect(comparison)
    assert [len(arm.runs) for arm in found.arms] == [3, 2]
    assert len(found.notes) == 1 and "flat: 1 of 3 runs not finished and left out (seed 2)." in found.notes[0]
    assert table_rows(found, 0.6)[1]["runs"] == "2 of 3"


def test_band_is_over_the_iterations_that_all_runs_share(tmp_path):
    curves = [
        [(0, 0, 0, 0.0), (5, 50, 1, 0.2), (10, 100, 2, 0.4)],
        [(0, 0, 0, 0.2), (5, 70, 3, None), (10, 140, 4, 0.8)],
    ]
    fake_comparison(tmp_path, {"one": curves}, seeds=2)
    found = collect(tmp_path)
    costs, scores = found.arms[0].band("evaluations")
    assert (costs, [one.mean for one in scores]) == (pytest.approx([0, 120]), pytest.approx([0.1, 0.6]))
    assert scores[1].high == pytest.approx(0.6 + 12.706 * 0.2, rel=1e-4)
    assert found.arms[0].band("seconds")[0] == [0, 3]
    assert found.notes == ("one: seed 1 has no score in 1 of its evaluations.",)


def test_table(comparison):
    steep, flat = table_rows(collect(comparison), 0.6)
    assert (steep["after"], steep["gain"], steep["peak memory"]) == ("0.800 ± 0.248", "+0.600", "3.00 GiB")
    assert (steep["evaluations to 0.6"], steep["seconds to 0.6"]) == ("2,000 (1,234 to more)", "12.0 (7.4 to more)")
    assert flat["evaluations to 0.6"] == flat["seconds to 0.6"] == "reached by 1 of 2" and flat["report"] == "–"


def test_one_seed_has_no_interval(tmp_path):
    fake_comparison(tmp_path, {"one | two": [[(0, 0, 0, 0.1), (5, 10, 2, 0.4)]], "none": [None]}, seeds=1)
    found = collect(tmp_path)
    one, none = table_rows(found, 0.3)
    assert (one["after"], one["spread"]) == ("0.400", "–")
    assert set(none.values()) == {"none", "0 of 1", "–"}
    lines = markdown(found, 0.3).splitlines()
    assert lines[2].startswith("| one \\| two | 1 | 0.100 |") and "±" not in "".join(lines)
    write_report(found, tmp_path, 0.3)
    assert json.loads((tmp_path / "results.json").read_text())["configurations"][1]["summary"] is None


def test_files_of_a_report(comparison):
    write_report(collect(comparison), comparison, 0.6)
    results = json.loads((comparison / "results.json").read_text())
    assert (results["metric"], results["target"], results["budget"]["amount"]) == (METRIC, 0.6, 4000)
    steep, flat = results["configurations"]
    assert steep["runs"][2]["curve"][1] == {"iteration": 20, "evaluations": 2000, "seconds": 14.0, "score": 0.7}
    assert flat["summary"]["seconds_to_target"] == {
        "cost": None,
        "low": None,
        "high": None,
        "reached": 1,
        "runs": 2,
    }
    table = (comparison / "table.md").read_text()
    assert "| steep | 3 | 0.200 |" in table and "Budget of a run: 4,000 evaluations." in table
    width, height = Image.open(comparison / "figure.png").size
    assert width > 1000 and height > 500


def test_another_metric(comparison):
    with pytest.raises(ConfigError, match="no_such"):
        collect(comparison, "no_such")
    fake_comparison(comparison.parent / "parts", {}, 1)
    with pytest.raises(ConfigError, match="nothing to report"):
        collect(comparison.parent / "parts")
    with pytest.raises(ConfigError, match="diffrl compare"):
        collect(comparison.parent / "nowhere")


def test_runs_that_do_not_tell_their_cost_are_refused(tmp_path):
    fake_comparison(tmp_path, {"one": [[(0, 0, 0, 0.1)]]}, seeds=1)
    path = tmp_path / "one" / "seed-0" / "metrics.jsonl"
    path.write_text(path.read_text().replace("cost/evaluations", "network_evaluations"))
    with pytest.raises(DiffrlError, match="older version"):
        collect(tmp_path)
