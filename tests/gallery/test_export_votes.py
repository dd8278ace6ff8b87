"""What an exported site publishes of votes, and how it stays small when a run has many evaluations."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from diffrl.gallery import export
from diffrl.gallery.export import export_site
from diffrl.gallery.records import State
from diffrl.gallery.sources import find_sources
from diffrl.gallery.votes import add_vote, side_of
from diffrl.tracking.store import SampleStore
from tests.gallery.made import eval_sample, make_run
from tests.gallery.test_export import addresses

pytestmark = pytest.mark.long


def run_without_curves(path: Path) -> Path:
    """A run whose metrics are gone: nothing has to be drawn."""
    (make_run(path, iterations=4) / "metrics.jsonl").unlink()
    return path


def sides(run: Path, iteration: int) -> list:
    """The samples of an evaluation as sides of votes."""
    (source,) = find_sources([run])
    state = State("eval", iteration)
    found = source.samples(state, [brief.id for brief in source.briefs(state, None)])
    return [side_of(source, state, sample) for sample in found]


def dead(site: Path) -> list[tuple[str, str]]:
    """Addresses on the pages of a site that lead nowhere."""
    found = [
        (page, one) for page, every in addresses(site).items() for one in every if not one.startswith(("#", "data:"))
    ]
    return [(page, one) for page, one in found if not (site / one).is_file()]


@pytest.fixture
def runs(tmp_path):
    """Two runs, and where their votes lie."""
    return *(run_without_curves(tmp_path / "runs" / name) for name in ("mine", "secret")), tmp_path / "votes.jsonl"


@pytest.mark.long
def test_votes_on_other_runs_stay_at_home(runs, tmp_path):
    mine, secret, file = runs
    for number, choice in enumerate(("a", "b", "tie")):
        add_vote(file, "Ada", "s", sides(mine, 0)[number], sides(mine, 4)[number], "a", choice)
    add_vote(file, "Bob", "s", sides(mine, 0)[0], sides(secret, 4)[0], "a", "a")
    add_vote(file, "Bob", "s", sides(secret, 0)[0], sides(secret, 4)[0], "a", "a")
    lines = export_site(find_sources([mine]), tmp_path / "site", {"votes": file})
    for path in (tmp_path / "site").rglob("*"):
        told = path.read_bytes() if path.is_file() else b""
        assert not [word for word in ("secret", "Bob", str(tmp_path)) if word.encode() in told], path
    page = (tmp_path / "site" / "votes-mine.html").read_text("utf-8")
    assert "3 votes" in page and "Ada" in page and "not in this gallery" not in page
    assert "Left out: 2 votes on what is not in this site." in lines and not dead(tmp_path / "site")
    whole = export_site(find_sources([mine, secret]), tmp_path / "both", {"votes": file})
    assert not [line for line in whole if "Left out" in line]
    assert len((tmp_path / "both" / "preferences.jsonl").read_text().splitlines()) == 4


def test_preference_pairs_of_a_site_name_its_own_pictures(runs, tmp_path):
    mine, _, file = runs
    before, after = sides(mine, 0), sides(mine, 4)
    for number, (left, choice) in enumerate((("a", "a"), ("b", "a"), ("a", "b"), ("b", "b"))):
        add_vote(file, "", "s", before[number], after[number], left, choice)
    (mine / before[3].picture).unlink()
    site = tmp_path / "site"
    export_site(find_sources([mine]), site, {"votes": file})
    rows = [json.loads(line) for line in (site / "preferences-mine.jsonl").read_text().splitlines()]
    assert len(rows) == 3, "a vote whose image is gone trains nobody"
    for row, number, won in zip(rows, range(3), "aab", strict=True):
        winner, loser = (before, after) if won == "a" else (after, before)
        for name, side in (("chosen", winner[number]), ("rejected", loser[number])):
            assert (site / row[name]).read_bytes() == (mine / side.picture).read_bytes()
        assert row["jpg_0"] == row["chosen" if row["label_0"] else "rejected"]
        assert row["jpg_1"] == row["rejected" if row["label_0"] else "chosen"]


@pytest.mark.parametrize(("choice", "gone", "offered"), [("tie", False, 0), ("a", True, 0), ("a", False, 2)])
def test_files_of_pairs_are_offered_only_where_they_hold_something(runs, tmp_path, choice, gone, offered):
    pytest.importorskip("pyarrow")
    mine, _, file = runs
    before, after = sides(mine, 0)[0], sides(mine, 4)[0]
    add_vote(file, "", "s", before, after, "a", choice)
    if gone:
        (mine / before.picture).unlink()
    lines = export_site(find_sources([mine]), tmp_path / "site", {"votes": file})
    page = (tmp_path / "site" / "votes-mine.html").read_text("utf-8")
    assert len(re.findall(r'href="preferences[^"]*"', page)) == offered and "1 vote" in page
    assert "Voting needs the running gallery" in page
    assert not dead(tmp_path / "site") and not [line for line in lines if "could not be made" in line]


def test_of_many_evaluations_the_slider_has_some_and_the_site_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(export, "MOST_EVALUATIONS", 10)  # of both runs together
    for name in ("long", "short"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("run: {iterations: 300}\n")
        with SampleStore(tmp_path / name) as store:
            count = 23 if name == "long" else 4
            store.write([eval_sample(10 * n, 0, 0, "a circle", 0.5) for n in range(count)])
    site = tmp_path / "site"
    options = {"votes": tmp_path / "votes.jsonl"}
    lines = export_site(find_sources([tmp_path / "long", tmp_path / "short"]), site, options)
    assert len(list(site.glob("compare-long*"))) == 1 and len(list(site.glob("evaluations-*long*"))) == 1
    (slider,) = site.glob("evaluations-*long*")
    assert [int(n) for n in re.findall(r'"evaluation (\d+)', slider.read_text("utf-8"))] == [0, 50, 100, 150, 200, 220]
    assert [line for line in lines if "evaluations are" in line] == [
        "Of long 6 of 23 evaluations are shown: the first, the last, some between."
    ]
    assert not dead(site)
