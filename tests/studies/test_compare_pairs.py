"""Paired differences on the report split, what they may be said to show, and what so many seeds cannot see."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from diffrl.cli import main
from diffrl.errors import ConfigError
from diffrl.studies.compare import collect, write_report
from diffrl.studies.compare.figures import draw_power
from diffrl.studies.compare.pairs import measured_sd, pairs_of, power_line, seeds_to_detect
from diffrl.studies.compare.tables import guidance_rows, markdown, pair_rows
from tests.studies.test_compare_tables import METRIC, fake_comparison

EVAL = {"samples": 7, "steps": 3, "solver": "ode", "seed": 11, "guidance_scale": 1.0, "rewards": [{"name": METRIC}]}
PROMPTS = {"train": "shapes:train", "eval": None, "per_iteration": 2}


def row(score, weights="aligned", scale=1.0, **others):
    iteration = 40 if weights == "aligned" else 0
    found = {"weights": weights, "iteration": iteration, "guidance_scale": scale, "prompts": "shapes:report"}
    found |= {"n": 6, "failed": 1, "steps": 3, "solver": "ode", "noise_seed": 11, "digest": "0"}
    return found | {"means": {METRIC: score}} | others


def measured(out, scores, seeds=None):
    """A comparison: label -> score on the report split of each seed, None where it was not measured."""
    seeds = seeds or max(map(len, scores.values()))
    curve = [(0, 0, 0.0, 0.2), (40, 4000, 20.0, 0.5)]
    fake_comparison(out, {label: [curve] * len(own) for label, own in scores.items()}, seeds)
    state = json.loads((out / "state.json").read_text())
    for entry in state["configurations"]:
        entry["config"] = {"run": {"seed": 0}, "prompts": PROMPTS, "eval": EVAL}
    (out / "state.json").write_text(json.dumps(state))
    for label, own in scores.items():
        for number, score in enumerate(own):
            if score is not None:
                write(out, label, number, row(score))
    return out


def write(out, label, number, *rows):
    with (out / label / f"seed-{number}" / "evaluations.jsonl").open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in rows)


def refusal(capsys, *arguments: object) -> str:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert stop.value.code == 2 and captured.err.startswith("error: ") and "Traceback" not in captured.err
    return captured.err


SCORES = {
    "one": [0.50, 0.62, 0.71, 0.55, 0.66],
    "two": [0.53, 0.66, 0.74, 0.58, 0.71],
    "three": [0.51, 0.6, 0.7, 0.57, 0.66],
}


def test_differences_are_those_of_the_report_split(tmp_path):
    found = collect(measured(tmp_path, SCORES))
    assert found.final == "shapes:report"
    pairs = pairs_of(found)
    assert [(pair.second, pair.first) for pair in pairs] == [("two", "one"), ("three", "one"), ("three", "two")]
    for pair in pairs:
        oracle = stats.ttest_rel(SCORES[pair.second], SCORES[pair.first])
        interval = oracle.confidence_interval(0.95)
        got = pair.difference
        assert (got.p, got.low, got.high) == pytest.approx((oracle.pvalue, interval.low, interval.high))
    assert [pair.finding for pair in pairs][0] == "higher" and pairs[1].finding.startswith("not resolved below 0.0")
    assert pairs[2].finding == "lower"
    text = markdown(found, 0.6)
    assert "| two less one | 5 | +0.036 | +0.025 to +0.047 |" in text and "no difference" not in text.lower()
    assert "Final numbers, and differences, are of shapes:report" in text


def test_power_line_is_of_the_pair_that_sees_least(tmp_path):
    found = collect(measured(tmp_path, SCORES))
    sds = {(a, b): np.std(np.subtract(SCORES[b], SCORES[a]), ddof=1) for a, b in (("one", "two"), ("two", "three"))}
    assert measured_sd(found) == (pytest.approx(max(sds.values()), rel=1e-6), 5)
    line = power_line(found)
    assert line.startswith("Power: with 5 seeds, differences below 0.0") and f"{max(sds.values()):.3f}" in line
    assert line in markdown(found, 0.6)


def test_until_a_run_is_measured_the_curves_stand_in(tmp_path):
    found = collect(measured(tmp_path, {"one": [None, None], "two": [None, None]}))
    assert found.final is None
    assert pairs_of(found)[0].difference.mean == 0.0  # their curves are the same
    assert "of the prompts of the curve" in markdown(found, 0.6)


def test_of_runs_that_are_measured_those_that_are_not_are_left_out_and_named(tmp_path):
    found = collect(measured(tmp_path, {"one": [0.5, 0.6, 0.7], "two": [0.7, None, 0.8]}))
    assert found.final == "shapes:report" and [len(arm.runs) for arm in found.arms] == [3, 2]
    difference = pairs_of(found)[0].difference
    assert (difference.n, difference.mean) == (2, pytest.approx(0.15))
    assert "two: not measured on shapes:report and left out: seed 1." in markdown(found, 0.6)


@pytest.mark.parametrize(
    "others",
    [
        {"n": 5},
        {"steps": 4},
        {"noise_seed": 12},
        {"iteration": 20},
        {"prompts": "shapes:tune"},
        {"guidance_scale": 3.0},
        {"means": {"shapes": 0.4}},
    ],
)
def test_measurements_of_something_else_do_not_count(tmp_path, others):
    out = measured(tmp_path, {"one": [None]})
    write(out, "one", 0, row(0.4, **others))
    assert collect(out).final is None
    write(out, "one", 0, row(0.5), row(0.6))
    found = collect(out)
    assert found.final == "shapes:report" and found.score(found.arms[0], found.arms[0].runs[0]) == 0.6


def test_a_damaged_measurement_is_named(tmp_path, capsys):
    out = measured(tmp_path, {"one": [0.4]})
    (out / "one" / "seed-0" / "evaluations.jsonl").open("a").write('{"weights"')
    message = refusal(capsys, "compare", "--report-only", "--out", out)
    assert "evaluations.jsonl, line 2 is damaged" in message


def test_pairs_are_of_seeds_that_both_have_finished(tmp_path):
    out = measured(tmp_path, {"one": [0.5, 0.6, 0.7], "two": [0.6, 0.7, 0.9]})
    (out / "one" / "seed-1" / "summary.json").unlink()
    (pair,) = pairs_of(collect(out))
    assert (pair.difference.n, pair.difference.mean) == (2, pytest.approx(0.15))


def test_one_seed_tells_nothing(tmp_path):
    found = collect(measured(tmp_path, {"one": [0.5], "two": [0.6]}))
    (pair,) = pairs_of(found)
    assert (pair.finding, pair.unseen, pair.p_holm) == ("one seed tells nothing", None, None)
    assert pair_rows([pair])[0]["95 % interval"] == "–" and "no difference is resolved" in power_line(found)
    assert "nothing is compared" in power_line(collect(measured(tmp_path / "alone", {"one": [0.5, 0.6]})))


def test_many_pairs_have_to_say_more(tmp_path):
    """A difference at p = .03 of one pair is not claimed among six."""
    generator = np.random.default_rng(1)
    scores = {name: generator.normal(0.6, 0.03, 6).round(4).tolist() for name in "abc"}
    scores["d"] = [
        value + shift for value, shift in zip(scores["a"], (0.05, 0.03, 0.01, 0.06, -0.01, 0.04), strict=True)
    ]
    pair = next(p for p in pairs_of(collect(measured(tmp_path, scores))) if (p.first, p.second) == ("a", "d"))
    assert pair.difference.p < 0.05 < pair.p_holm and pair.finding == "not resolved among so many pairs"


def test_runs_that_are_no_pairs_are_not_subtracted(tmp_path):
    out = measured(tmp_path, {"one": [0.5, 0.6], "two": [0.6, 0.7]})
    state = json.loads((out / "state.json").read_text())
    state["configurations"][1]["config"]["run"]["seed"] = 7
    (out / "state.json").write_text(json.dumps(state))
    found = collect(out)
    assert not found.paired and pairs_of(found) == [] and "run.seed must be the same" in found.notes[0]
    assert "no pairs" in power_line(found) and markdown(found, 0.6)


def test_guidance(tmp_path):
    out = measured(tmp_path, {"one": [0.5, 0.6]})
    write(out, "one", 0, row(0.3, "base"), row(0.65, "base", 3.0), row(0.45, scale=3.0))
    write(out, "one", 1, row(0.55, scale=3.0))
    (found,) = guidance_rows(collect(out))
    assert list(found) == ["configuration", "base", "base + CFG 3", "aligned", "aligned + CFG 3"]
    assert found["base"] == "0.300" and found["base + CFG 3"] == "0.650"
    assert found["aligned"].startswith("0.550 ±") and found["aligned + CFG 3"].startswith("0.500 ±")


def test_figures_and_numbers_of_a_report(tmp_path):
    out = measured(tmp_path, SCORES)
    write_report(collect(out), out, 0.6)
    assert Image.open(out / "differences.png").size[1] > 200
    results = json.loads((out / "results.json").read_text())
    assert results["final"] == "shapes:report" and len(results["pairs"]) == 3
    assert results["pairs"][0]["difference"]["n"] == 5 and results["power"].startswith("Power: with 5 seeds")
    reported = results["configurations"][0]["runs"][0]["reported"]
    assert reported == [{"weights": "aligned", "guidance_scale": 1.0, "score": 0.5}]
    draw_power(0.02, 5, out / "power.png", METRIC)
    assert Image.open(out / "power.png").size[0] > 500
    alone = measured(tmp_path / "alone", {"one": [0.5]})
    (alone / "differences.png").touch()
    write_report(collect(alone), alone, 0.6)
    assert not (alone / "differences.png").exists()


def test_seeds_to_detect_a_difference(tmp_path, capsys):
    assert seeds_to_detect(0.5, 1.0) == 34  # Cohen's medium effect
    for difference, sd in ((0.0, 0.1), (0.1, -1.0), (float("nan"), 0.1), (0.1, float("inf"))):
        with pytest.raises(ConfigError, match="above 0"):
            seeds_to_detect(difference, sd)
    with pytest.raises(ConfigError, match="more than 1000 seeds"):
        seeds_to_detect(0.001, 0.1)
    out = measured(tmp_path, SCORES)
    with pytest.raises(SystemExit) as stop:
        main(["compare", "--report-only", "--out", str(out), "--detect", "0.01"])
    expected = seeds_to_detect(0.01, measured_sd(collect(out))[0])
    assert not stop.value.code and f"A difference of 0.01 takes {expected} seeds" in capsys.readouterr().out
