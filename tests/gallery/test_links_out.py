"""A link out of a run's directory shows nothing of what it leads to, whichever file or folder of the run it is."""

from __future__ import annotations

import json
import shutil

import pytest

from diffrl.errors import DiffrlError
from diffrl.gallery.export import Shelf
from diffrl.tracking.store import SampleStore
from tests.gallery import made_trees
from tests.gallery.made import make_run, metrics_rows

WORDS = {
    "config.yaml": "dromedary",
    "environment.json": "echidna",
    "log.txt": "flamingo",
    "metrics.jsonl": "gnu",
    "samples.sqlite": "hippopotamus",
    "trees/000020-3/tree.json": "ibex",
}
"""Files of a run, and what each of them alone says."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run whose every file says a word."""
    run = make_run(tmp_path_factory.mktemp("whole") / "made", prompts=(WORDS["samples.sqlite"],), iterations=2)
    made_trees.write(run, made_trees.forest(prompt=WORDS["trees/000020-3/tree.json"]))
    (run / "config.yaml").write_text(f"run: {{name: {WORDS['config.yaml']}, iterations: 4}}\n")
    (run / "environment.json").write_text(json.dumps({"device": WORDS["environment.json"]}))
    (run / "log.txt").write_text(f"{WORDS['log.txt']}\n")
    rows = [{**row, f"held_out/{WORDS['metrics.jsonl']}": 0.5} for row in metrics_rows(2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


@pytest.fixture
def run(whole, tmp_path):
    """A copy of it."""
    return shutil.copytree(whole, tmp_path / "runs" / "made")


def pages(client):
    names = ("", "run", "compare", "trees", "tree", "curves", "curves.csv")
    return {name: client.get(f"/{name}?run=made&tree=000020-3" if name else "/") for name in names}


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.long
def test_no_page_shows_a_file_that_is_a_link_out(client_of, run, tmp_path, name):
    said = [path for path, answer in pages(client_of(run)).items() if WORDS[name] in answer.text]
    assert said  # while it is a file of the run
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    found = pages(client_of(run))
    assert not [path for path, answer in found.items() if WORDS[name] in answer.text]
    assert {answer.status_code for answer in found.values()} <= {200, 404, 503}
    assert any("is a link out of it" in answer.text for answer in found.values())


@pytest.mark.parametrize("name", ["samples", "samples/eval-000000", "trees", "trees/000020-3"])
def test_pictures_of_a_folder_that_is_a_link_out_are_missing(client_of, site_of, run, tmp_path, name):
    files = [str(path.relative_to(run)) for path in (run / name).rglob("*.webp")]
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    client, shelf = client_of(run), Shelf(site_of(run).sources, tmp_path)
    assert files and {client.get(f"/media/made/{file}").status_code for file in files} == {404}
    assert {shelf.keep("made", file, None, False) for file in files} == {"media/missing.svg"}
    if "/" not in name:
        assert f"{name} is a link out of it" in client.get("/run?run=made").text


def test_a_store_reads_no_pictures_through_a_link_out(run, tmp_path):
    (run / "samples").rename(tmp_path / "elsewhere")
    (run / "samples").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with SampleStore.open_readonly(run) as store:
        sample = next(sample for sample in store.read() if sample.file)
        with pytest.raises(DiffrlError, match="is a link out of it"):
            store.picture(sample)


def test_links_within_the_run_and_to_the_run_are_followed(client_of, run, tmp_path):
    (run / "samples").rename(run / "kept")
    (run / "samples").symlink_to(run / "kept", target_is_directory=True)
    (tmp_path / "latest").symlink_to(run, target_is_directory=True)
    client = client_of(tmp_path / "latest")
    file = next(path.relative_to(run / "kept") for path in (run / "kept").rglob("*.webp"))
    assert client.get(f"/media/made/samples/{file}").content == (run / "kept" / file).read_bytes()
    assert WORDS["samples.sqlite"] in client.get("/run?run=made").text
