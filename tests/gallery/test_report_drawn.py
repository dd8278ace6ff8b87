"""What of a report is drawn and what is not, why, and when it is drawn again."""

from __future__ import annotations

import json
import re

import pytest

from diffrl.gallery import progress
from diffrl.gallery.curves import columns_of, lines_of, page_data
from diffrl.gallery.pages import report as report_page
from diffrl.gallery.panels import panels_of
from diffrl.gallery.plots import panel_svg
from diffrl.gallery.runs import RunSource
from diffrl.gallery.series import track_of
from diffrl.gallery.site import REPORTS
from tests.gallery.made import keep_columns, metrics_rows, write_metrics
from tests.gallery.test_report import report_of


def test_of_a_finished_run_it_is_made_once_until_a_file_changes(made, client_of, monkeypatch):
    keep_columns(made, "held_out/shapes", "update/loss")
    drawn = []
    real = report_page.report_document
    monkeypatch.setattr(report_page, "report_document", lambda run: drawn.append(run) or real(run))
    client = client_of(made)
    first = client.get("/report")
    assert client.get("/report").text == first.text and len(drawn) == 1
    assert "Held-out shapes rose" in client.get("/report", params={"download": "1"}).text and len(drawn) == 1
    for n, name in enumerate(("config.yaml", "environment.json", "log.txt", "metrics.jsonl", "summary.json"), start=2):
        with (made / name).open("a") as file:
            file.write("\n")
        assert client.get("/report").status_code == 200 and len(drawn) == n, name
    (made / "summary.json").unlink()
    assert [client.get("/report").status_code for _ in range(2)] == [200, 200] and len(drawn) == n + 1
    monkeypatch.setattr(progress, "FRESH", -1)  # a run that goes on changes without its files: it stops being fresh
    assert client.get("/report").status_code == 200 and len(drawn) == n + 2


def test_reports_of_no_more_than_a_few_runs_stay_in_memory(made, site_of, monkeypatch):
    drawn = []
    monkeypatch.setattr(report_page, "report_document", lambda run: drawn.append(run.key) or run.key)
    site, runs = site_of(made), [RunSource(f"r{n}", made) for n in range(REPORTS + 2)]
    assert [report_page.document_of(site, run) for run in runs] == [run.key for run in runs]
    for run in (runs[2], runs[-1], runs[1]):
        assert report_page.document_of(site, run) == run.key
    assert drawn == [*(run.key for run in runs), runs[1].key]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("train: {updates_per_iteration: 1}", True),
        ("train: {updates_per_iteration: 2}", False),
        ("train: {updates_per_iteration: 1}\nobjective: {kind: nft, old_decay_max: 0.5}", False),
        ("", False),
    ],
)
def test_why_a_ratio_stands_still_is_told_where_it_is_known(made, client_of, config, said):
    columns = ("update/ratio", "update/clipped", "fidelity/tau")
    still = {"update/ratio": 1.0, "update/clipped": 0.0, "fidelity/tau": 0.5}
    rows = [{**row, **(still if row["iteration"] else {})} for row in metrics_rows(4)]
    (made / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keep_columns(made, *columns)
    (made / "config.yaml").write_text(config)
    words = report_of(made).words("curves")
    assert "they stayed at one value: Rank agreement 0.5; Ratio 1; Clip fraction 0." in words
    why = "with one update an iteration, measured before it"
    assert ("With one update an iteration, Ratio, Clip fraction are measured before it." in words) is said
    notes = re.findall(
        r'data-panel="(\w+)".*?<span class="soft small">(.*?)</span>', client_of(made).get("/curves").text, re.S
    )
    assert {panel for panel, note in notes if why in note} == ({"ratio", "clipped"} if said else set())


@pytest.mark.long
def test_numbers_near_the_largest_float_are_gaps(made):
    for low, high in ((-8e307, 8e307), (0.1, 1e308)):
        rows = [
            {"iteration": i, "cost/seconds": i * 1e308, "reward/mean": value, "reward/std": 1e308}
            for i, value in enumerate((0.1, low, high, 0.2, 0.3))
        ]
        (made / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert report_of(made).tags.count("svg") == 1
        track = track_of(RunSource("made", made))
        panels = panels_of(columns_of([track]))
        assert all("<svg" in panel_svg(panel, track) for panel in panels)
        data = page_data(panels, {panel.id: lines_of(panel, [track]) for panel in panels}, [track], "seconds")
        (line,) = data["panels"][0]["lines"]
        gone = [None if abs(value) > 1e300 else value for value in (low, high)]
        assert line["y"] == [0.1, *gone, 0.2, 0.3] and line["band"] == [None] * 5
        assert data["axes"]["seconds"] == [[0, None, None, None, None]]


def test_rows_that_were_lost_are_told(made):
    write_metrics(made, 1)
    head = report_of(made).words()
    assert "metrics.jsonl ends at iteration 1, but images go to evaluation 4: rows are missing." in head
    (made / "metrics.jsonl").write_text("")
    assert "metrics.jsonl has no rows, but images go to evaluation 4" in report_of(made).words()
