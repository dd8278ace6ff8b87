"""What a scorer says of a sample is kept by the run and shown where the sample is shown."""

from __future__ import annotations

import html
import sqlite3

import pytest
import torch

from diffrl.gallery.records import reason
from diffrl.models.images import Cell, comparison_grid
from diffrl.records import Prompt
from diffrl.rewards.score import WeightedScorer, score
from diffrl.tracking.store import SampleStore, StoredSample
from diffrl.trees.read import list_trees, read_tree
from tests.training.harness import FOREST, TREES, settings, start
from tests.training.scorers import Telling

TELLING = "tests.training.scorers:Telling"


def test_the_table_has_notes_of_each_sample_and_only_of_who_speaks():
    images = torch.stack([torch.full((3, 4, 4), value, dtype=torch.uint8) for value in (10, 20, 30, 40, 50)])
    scorers = [
        WeightedScorer(name, scorer, batch_size=2)
        for name, scorer in (("telling", Telling()), ("silent", Telling(quiet=True)))
    ]
    table = score(scorers, images, [Prompt(f"p{i}") for i in range(5)])
    assert list(table.notes) == ["telling"]
    assert [table.notes_of(i) for i in range(5)] == [{"telling": f"first is {v}"} for v in (10, 20, 30, 40, 50)]


def test_the_store_gives_notes_back(tmp_path):
    first = StoredSample("eval", 0, 0, 0, 1, "p", notes={"a": "why", "b": "why not"})
    with SampleStore(tmp_path) as store:
        store.write([first, StoredSample("eval", 0, 1, 0, 1, "p")])
        assert [s.notes for s in store.read()] == [first.notes, {}]
        store.write([StoredSample("eval", 0, 0, 0, 1, "p", notes={"a": "now"})])
        assert [s.notes for s in store.read()][:1] == [{"a": "now"}]
        store.truncate_after(-1, ["eval"])
    with sqlite3.connect(tmp_path / "samples.sqlite") as database:
        assert database.execute("SELECT count(*) FROM notes").fetchone() == (0,)


def test_a_run_keeps_and_shows_them(random_sd3, tmp_path):
    from fastapi.testclient import TestClient

    from diffrl.gallery.app import make_app
    from diffrl.gallery.links import ServerLinks
    from diffrl.gallery.site import Site
    from diffrl.gallery.sources import find_sources

    data = settings(random_sd3, tmp_path, rewards=[{"name": TELLING}], rollout=FOREST, track=TREES)
    data["eval"]["rewards"], data["run"]["iterations"] = [{"name": TELLING}], 1
    run, _ = start(data)
    with SampleStore.open_readonly(run) as store:
        for stage in ("eval", "train"):
            samples = store.read(stage=stage)
            assert samples and all(s.notes[TELLING].startswith("first is ") for s in samples)
    leaves = [node.leaf for name in list_trees(run) for node in read_tree(run, *name).nodes if node.leaf]
    assert leaves and all(leaf.notes[TELLING].startswith("first is ") for leaf in leaves)
    hostile = "<img src=x onerror=alert(1)> & \"quoted\" 'too'"
    with sqlite3.connect(run / "samples.sqlite") as database:
        database.execute("UPDATE notes SET note = ?", (hostile,))
    options = {"votes": tmp_path / "votes.jsonl"}
    client = TestClient(make_app(Site(find_sources([run]), ServerLinks("t"), options)), base_url="http://127.0.0.1")
    for page in ("/compare", "/"):
        text = client.get(page).text
        assert "<img src=x" not in text and html.escape("<img src=x onerror=alert(1)>") in text
    (iteration, group), *_ = list_trees(run)
    assert "Scorers say" in client.get(f"/tree?run={run.name}&tree={iteration:06d}-{group}").text


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ({}, None),
        ({"a": "\n "}, None),
        ({"shapes": "left of: wrong", "shapes_strict": "left of: wrong"}, "left of: wrong"),
        ({"a": "one", "b": "two\nlines"}, "one · two lines"),
    ],
)
def test_each_thing_is_said_once(notes, expected):
    assert reason(notes) == expected
    assert len(reason({str(i): f"{i} {'x' * 300}" for i in range(50)})) == 200


def test_notes_stand_below_their_pictures_and_only_where_there_are_some():
    pictures = [torch.zeros(3, 8, 8, dtype=torch.uint8)] * 2
    plain = comparison_grid([Cell("a", pictures)])
    silent = comparison_grid([Cell("a", pictures, (), [None, None])])
    noted = comparison_grid([Cell("a", pictures, (), ["read " + "gren" * 100, None])])
    assert silent.size == plain.size and noted.width == plain.width and noted.height > plain.height
    line = noted.crop((0, plain.height - 60, noted.width // 2, noted.height))
    assert noted.getpixel((noted.width - 10, 60)) == plain.getpixel((plain.width - 10, 60)) and line.getcolors(10**6)
