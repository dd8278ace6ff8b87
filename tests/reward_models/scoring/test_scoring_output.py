"""The same rows in every format, statistics against the standard library's, correlations against scipy's."""

from __future__ import annotations

import csv
import math
import statistics
import sys

import numpy as np
import pytest
from PIL import Image
from scipy.stats import pearsonr, spearmanr

from reward_models.scoring.plots import correlations
from reward_models.scoring.summary import Series

REWARDS = ["--reward", "shapes", "--reward", "sharpness", "--reward", "size=jpeg_compressibility"]


@pytest.fixture
def with_failures(pictures):
    (pictures / "2.txt").write_text('no shapes, in "quotes",\nand a second line: é ☃')
    (pictures / "5.png").write_text("broken")
    (pictures / "5.txt").write_text("a red circle")
    return pictures


def test_all_formats_hold_the_same_rows(score, with_failures, rows, tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    outs = [tmp_path / "new" / f"s.{suffix}" for suffix in ("jsonl", "csv", "parquet")]
    arguments = [argument for out in outs for argument in ("--out", out)]
    assert score(with_failures, *REWARDS, *arguments).code == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["s.csv", "s.jsonl", "s.parquet"]
    expected = rows(outs[0])
    with outs[1].open(encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream))
    columns = pyarrow.parquet.read_table(outs[2]).to_pylist()
    assert len(expected) == len(table) == len(columns) == 6
    for row, flat, typed in zip(expected, table, columns, strict=True):
        assert row["file"] == flat["file"] == typed["file"] and row["prompt"] == flat["prompt"] == typed["prompt"]
        for label, one in row["rewards"].items():
            assert typed[label] == one["raw"] and flat[label] == ("" if one["raw"] is None else str(one["raw"]))
            for said in ("error", "note"):
                assert typed[f"{label}.{said}"] == one[said] and flat[f"{label}.{said}"] == (one[said] or "")
            assert typed[f"{label}.version"] == flat[f"{label}.version"] == one["version"]
            for part, value in one["parts"].items():
                assert typed[f"{label}/{part}"] == value
    assert columns[5]["shapes/count"] is None and columns[0]["shapes/count"] == 1.0
    assert pyarrow.parquet.read_schema(outs[2]).field("size").type == "float"


def test_an_old_file_is_replaced_only_by_a_whole_one(score, refused, with_failures, counting, tmp_path):
    out = tmp_path / "s.jsonl"
    out.write_text("the last run's rows")
    name = counting("stops", before="from reward_models import RewardError; raise RewardError('The server is gone.')")
    message = refused(with_failures, "--reward", name, "--option", f"log={tmp_path / 'log'}", "--out", out)
    assert "The server is gone." in message and out.read_text() == "the last run's rows"
    assert score(with_failures, *REWARDS, "--out", out).code == 0
    assert len(out.read_text().splitlines()) == 6


def test_parquet_without_pyarrow_is_told_before_scoring(refused, pictures, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "diffrl[parquet]" in refused(pictures, *REWARDS, "--out", tmp_path / "s.parquet")
    assert "--out takes a file" in refused(pictures, *REWARDS, "--out", tmp_path / "s.txt")


def test_the_summary_is_that_of_the_rows(score, with_failures, rows, tmp_path):
    done = score(with_failures, *REWARDS, "--out", tmp_path / "s.jsonl", "--json")
    for label, facts in done.summary["rewards"].items():
        named = [(row["rewards"][label]["raw"], row["file"]) for row in rows(tmp_path / "s.jsonl")]
        good = [(value, name) for value, name in named if value is not None]
        values = [value for value, _ in good]
        assert facts["n"] == len(values) and facts["failed"] == 6 - len(values) > 0
        for key, expected in (
            ("mean", statistics.fmean(values)),
            ("std", statistics.stdev(values)),
            ("median", statistics.median(values)),
            ("min", min(values)),
            ("max", max(values)),
        ):
            assert facts[key] == pytest.approx(expected, rel=1e-12)
        assert facts["best"][0]["raw"] == max(values) and facts["worst"][0]["raw"] == min(values)
        assert not {one["file"] for one in facts["best"]} & {one["file"] for one in facts["worst"]}
    table = score(with_failures, *REWARDS).out
    assert "shapes failed for 2 of 6 files" in table and "best sharpness: " in table


def test_where_lower_is_better_the_lowest_is_the_best(score, pictures, tmp_path, monkeypatch):
    (tmp_path / "lower.py").write_text(
        "import dataclasses\nfrom reward_models.images.jpeg import *\n"
        "class Lower(IncompressibilityScorer):\n"
        "    spec = dataclasses.replace(IncompressibilityScorer.spec, higher_is_better=False)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    facts = score(pictures, "--reward", "lower:Lower", "--json").summary["rewards"]["lower:Lower"]
    assert facts["best"][0]["raw"] == facts["min"] and facts["worst"][0]["raw"] == facts["max"]
    assert "lower is better" in score(pictures, "--reward", "lower:Lower").out


def test_correlations_are_scipys_over_what_both_scored():
    random = np.random.default_rng(3)
    a = random.normal(size=41)
    b = np.round(a + random.normal(size=41), 1)  # with ties
    a[[3, 7]], b[11] = np.nan, np.nan
    series = [Series("a", values=a.tolist()), Series("b", values=b.tolist()), Series("flat", values=[1.0] * 41)]
    good = np.isfinite(a) & np.isfinite(b)
    for ranks, reference in ((False, pearsonr), (True, spearmanr)):
        matrix = correlations(series, ranks)
        assert matrix[0, 1] == pytest.approx(reference(a[good], b[good]).statistic, rel=1e-9)
        assert matrix[0, 1] == matrix[1, 0] and matrix[0, 0] == pytest.approx(1) and math.isnan(matrix[0, 2])


@pytest.mark.long
def test_figures_show_every_reward(score, refused, with_failures, tmp_path):
    assert score(with_failures, *REWARDS, "--plot", tmp_path / "figures").code == 0
    names = ["correlation.png", "histogram-shapes.png", "histogram-sharpness.png", "histogram-size.png"]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == names
    assert score(with_failures, *REWARDS[:2], "--plot", tmp_path / "one.png").code == 0
    assert score(with_failures, *REWARDS, "--plot", tmp_path / "all.png").code == 0
    sizes = {}
    for path in [*(tmp_path / "figures").iterdir(), tmp_path / "one.png", tmp_path / "all.png"]:
        with Image.open(path) as image:
            sizes[path.stem] = image.size
            assert len(image.convert("RGB").getcolors(10**6) or []) > 20  # something is drawn
    assert sizes["all"][1] > sizes["one"][1] and sizes["all"][0] > 2 * sizes["one"][0]
    assert "--plot takes" in refused(with_failures, *REWARDS, "--plot", tmp_path / "x.doc")


def test_nothing_that_is_read_is_written_over(refused, score, pictures, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"file": "0.png", "prompt": "a red circle"}')
    before = {path: path.read_bytes() for path in [prompts, *pictures.iterdir()]}
    first = next(path for path in sorted(pictures.iterdir()) if path.suffix == ".png")
    for out in (["--plot", first], ["--out", pictures / "metadata.jsonl"], ["--out", tmp_path / "samples.jsonl"]):
        assert "never write over what is read" in refused(pictures, "--reward", "sharpness", *out)
    told = refused(first, "--prompts", prompts, "--reward", "sharpness", "--out", prompts)
    assert "never write over what is read" in told and str(prompts) in told
    for target in (pictures / "plots", pictures / "new.png"):
        assert "must lie outside" in refused(pictures, "--reward", "sharpness", "--plot", target)
    assert before == {path: path.read_bytes() for path in [prompts, *pictures.iterdir()]}
    assert score(first, "--reward", "sharpness", "--plot", pictures / "beside.png").code == 0  # no folder is scored
