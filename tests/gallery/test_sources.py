"""What is found on the command line, and what comes to it while the gallery is open."""

import os

import pytest
from fastapi.testclient import TestClient

from diffrl.cli import main
from diffrl.errors import ConfigError
from diffrl.gallery import sources as module
from diffrl.gallery.app import make_app
from diffrl.gallery.command import GalleryRequest, require_votes, show_gallery
from diffrl.gallery.links import ServerLinks
from diffrl.gallery.site import Site
from diffrl.gallery.sources import Watched, find_sources, left_out
from tests.gallery.made import make_run


def test_folders_with_a_configuration_alone_are_named(tmp_path):
    runs = tmp_path / "runs"
    make_run(runs / "whole")
    make_run(runs / "compared" / "runs" / "one")
    for folder in ("empty", "compared", "compared/lost", "whole/samples/inside", ".hidden", "other"):
        (runs / folder).mkdir(parents=True, exist_ok=True)
        (runs / folder / "config.yaml").write_text("")
    (runs / "other" / "environment.json").write_text("{}")
    lines = left_out([runs, runs / "whole", tmp_path])
    assert [line.split(" ")[2] for line in lines] == [str(runs / "compared" / "lost"), str(runs / "empty")]
    assert "neither samples.sqlite nor environment.json" in lines[0]
    assert left_out([runs / "whole", tmp_path / "nothing"]) == []


def test_a_run_that_begins_later_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SCAN", 0.0)
    runs = tmp_path / "runs"
    make_run(runs / "first")
    sources = find_sources([runs])
    site = Site(Watched([runs], sources), ServerLinks("test"))
    client = TestClient(make_app(site), base_url="http://127.0.0.1")
    assert list(client.get("/state").json()) == ["first"]
    make_run(runs / "compared" / "second")
    make_run(runs / "compared" / "first")  # the same name elsewhere
    found = {source.key: source.path for source in site.sources}
    assert found == {
        "first": runs / "first",
        "first-2": runs / "compared" / "first",
        "second": runs / "compared" / "second",
    }
    assert site.source("first") is sources[0], "what was there keeps its place in memory"
    assert {source.key: source.title for source in site.sources}["first-2"] == "compared/first"
    assert set(client.get("/state").json()) == {"first", "second", "first-2"}
    assert "second" in client.get("/").text


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    """As those of a comparison are: each arm has its seed-0."""
    places = ("flow_grpo/seed-0", "diffrl/seed-0", "diffrl/seed-1", "other/diffrl/seed-1", "alone")
    found = find_sources([make_run(tmp_path / place) for place in places])
    here = tmp_path.name
    assert [one.title for one in found] == [*places[:2], f"{here}/diffrl/seed-1", "other/diffrl/seed-1", "alone"]
    assert len({one.key for one in found}) == len(found)


def test_runs_keep_their_order_when_they_are_looked_at(tmp_path):
    """A store that is read is a directory that was changed."""
    runs = [make_run(tmp_path / "runs" / name) for name in ("b", "c", "a")]
    for age, run in enumerate(runs):
        for file in (*run.glob("*.*"), run):
            os.utime(file, (1e9 - 100 * age,) * 2)
    sources = find_sources([tmp_path / "runs"])
    assert [source.key for source in sources] == ["a", "c", "b"], "the first begun first"
    os.utime(runs[-1])
    for order in ([tmp_path / "runs"], runs, runs[::-1]):
        assert [source.key for source in find_sources(order)] == ["a", "c", "b"], "whatever order they are named in"


def test_an_empty_folder_waits_for_its_first_run(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SCAN", 0.0)
    runs = tmp_path / "runs"
    (runs / "begun").mkdir(parents=True)
    (runs / "begun" / "config.yaml").write_text("")
    site = Site(Watched([runs], find_sources([runs])), ServerLinks("test"), {"votes": tmp_path / "votes.jsonl"})
    client = TestClient(make_app(site), base_url="http://127.0.0.1")
    page = client.get("/")
    assert page.status_code == 200 and "No run has begun" in page.text and 'http-equiv="refresh"' in page.text
    assert client.get("/votes").status_code == 200 and client.get("/state").json() == {}
    assert {client.get(f"/{name}").status_code for name in ("compare", "curves", "run", "trees")} <= {
        200,
        404,
    }
    with pytest.raises(ConfigError, match="is empty"):
        show_gallery(GalleryRequest([runs], export=tmp_path / "site", votes=tmp_path / "votes.jsonl"), print)
    make_run(runs / "begun")
    page = client.get("/").text
    assert 'data-page="run"' in page and 'http-equiv="refresh"' not in page


def test_what_is_no_directory_of_runs_ends_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "notes.txt"
    file.write_text("x", encoding="utf-8")
    refused = {
        (): "diffrl train configs/quickstart.yaml",
        (file,): f"{file} is a file. Give the directory that it is in.",
        (tmp_path,): f"{tmp_path} holds neither",
    }
    for paths, words in refused.items():
        with pytest.raises(SystemExit) as stop:
            main(["gallery", *map(str, paths)])
        captured = capsys.readouterr()
        assert stop.value.code == 2 and captured.out == "" and words in captured.err
        assert captured.err.startswith("error: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize("place", ["", "none/votes.jsonl"])
def test_votes_go_to_a_file(tmp_path, place):
    with pytest.raises(ConfigError, match="--votes takes a file"):
        require_votes(tmp_path / place)
