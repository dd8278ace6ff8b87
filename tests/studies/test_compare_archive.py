"""An archive of a comparison: the same report as of its runs, gone on with, priced anew."""

from __future__ import annotations

import json

import pytest

from diffrl.cost.prices import parse_prices
from diffrl.studies.compare.archive import pack, unpack
from diffrl.studies.compare.results import collect
from diffrl.studies.compare.tables import markdown
from tests.studies.test_compare import config, in_order, run, trained  # noqa: F401  (fixtures)


@pytest.fixture
def compared(config, trained, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    two = f"two: {config} rollout.tree.roots=2"
    budget = ("--budget", "evaluations=1200", "--evals", 2)
    assert run(*in_order(config, two, *budget, "--seeds", 2, "--out", out)) == 0
    return out, (config, two, *budget)


def test_an_archive_reports_what_its_runs_report(compared, tmp_path):
    out, _ = compared
    assert pack(out, tmp_path / "kept.jsonl") == 4
    unpack(tmp_path / "kept.jsonl", tmp_path / "again")
    assert markdown(collect(tmp_path / "again"), 0.1) == markdown(collect(out), 0.1)


def test_an_archive_is_gone_on_with(compared, trained, tmp_path):  # noqa: F811
    out, asked = compared
    pack(out, tmp_path / "kept.jsonl")
    unpack(tmp_path / "kept.jsonl", tmp_path / "again")
    trained.clear()
    assert run(*in_order(*asked, "--seeds", 3, "--out", tmp_path / "again")) == 0
    assert sorted(trained) == ["base/seed-2", "two/seed-2"]  # the others were there
    assert [len(arm.runs) for arm in collect(tmp_path / "again").arms] == [3, 3]


def test_counts_between_two_evaluations_are_added_up(compared, tmp_path):
    """Exploring at a price is priced alike from all rows and from the archive's few."""
    out, _ = compared
    state = json.loads((out / "state.json").read_text())
    for entry in state["configurations"]:
        entry["config"]["rollout"]["explore"] = {"precision": "nvfp4"}
    (out / "state.json").write_text(json.dumps(state))
    for path in out.glob("*/seed-*/metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        spent = [row | {"evaluations/explore": 40, "evaluations/update": 2} for row in rows[1:]]
        path.write_text("".join(json.dumps(row) + "\n" for row in [rows[0], *spent]))
    found = collect(out, prices=parse_prices("equal,nvfp4=0.25")).arms[0].runs[0].curve
    assert [point.evaluations for point in found] == [16 * point.iteration for point in found]  # 40 / 4 + 3 * 2
    pack(out, tmp_path / "kept.jsonl")
    kept = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert [sum(row.get("evaluations/explore", 0) for row in line["rows"]) for line in kept[1:]] == [
        40 * line["summary"]["iterations"] for line in kept[1:]
    ]


def test_a_run_that_was_not_measured_is_trained_again(compared, trained, tmp_path):  # noqa: F811
    """It has no weights any more that could be measured."""
    out, asked = compared
    (out / "base" / "seed-1" / "evaluations.jsonl").unlink()
    assert pack(out, tmp_path / "kept.jsonl") == 3
    unpack(tmp_path / "kept.jsonl", tmp_path / "again")
    trained.clear()
    assert run(*in_order(*asked, "--seeds", 2, "--out", tmp_path / "again")) == 0
    assert trained == ["base/seed-1"]
