"""An export that is asked for from a page: who may, what comes of it, and that it is the one that the command makes."""

from __future__ import annotations

import io
import re
import threading
import zipfile

import pytest

from diffrl.errors import ConfigError
from diffrl.gallery.export import export_site
from diffrl.gallery.pages import export as page
from diffrl.gallery.sources import find_sources
from tests.gallery.made import keep_columns, make_run
from tests.patience import until

SAME = {"sec-fetch-site": "same-origin"}


@pytest.fixture
def runs(tmp_path):
    return [keep_columns(make_run(tmp_path / "runs" / name), "held_out/shapes") for name in ("one", "two")]


def ask(client, run="", headers=SAME, key=None):
    own = re.search(r'name="key" value="([^"]+)"', client.get("/export").text)[1]
    form = {"key": own if key is None else key, **({"run": run} if run else {})}
    return client.post("/export", data=form, headers=headers, follow_redirects=False)


def finished(client):
    """The page once it says what became of the export."""
    until(lambda: 'data-running="no"' in client.get("/export").text)
    return client.get("/export").text


def test_a_click_gives_the_site_that_the_command_writes(runs, client_of, tmp_path):
    client = client_of(*runs)
    assert 'href="/export?run=one"' in client.get("/run?run=one").text
    answer = ask(client, run="one")
    assert answer.status_code == 303 and answer.headers["location"] == "/export?run=one"
    said = finished(client)
    address = re.search(r'href="(/export/gallery-[\d-]+\.zip)" download', said)[1]
    found = client.get(address)
    assert found.headers["content-type"] == "application/zip" and str(tmp_path) not in said
    archive = zipfile.ZipFile(io.BytesIO(found.content))
    (folder,) = {name.partition("/")[0] for name in archive.namelist()}
    assert f"/export/{folder}.zip" == address
    options = {"votes": tmp_path / "votes.jsonl"}
    export_site(find_sources(runs[:1]), tmp_path / "site", options)
    wanted = {
        str(path.relative_to(tmp_path / "site")): path for path in (tmp_path / "site").rglob("*") if path.is_file()
    }
    assert {name.partition("/")[2] for name in archive.namelist() if not name.endswith("/")} == set(wanted)
    assert "/export" not in wanted["index.html"].read_text("utf-8"), "an exported page offers none"
    for name, path in wanted.items():
        if not name.endswith(".svg"):  # a drawing has ids of its own
            assert archive.read(f"{folder}/{name}") == path.read_bytes(), name


@pytest.mark.parametrize(
    ("headers", "key", "run", "status"),
    [
        ({"sec-fetch-site": "cross-site"}, None, "", 403),
        ({"origin": "http://elsewhere.example"}, None, "", 403),
        (SAME, "guessed", "", 403),
        (SAME, "", "", 403),
        (SAME, None, "nobody", 404),
    ],
)
def test_exports_from_elsewhere_are_refused(runs, client_of, headers, key, run, status):
    client = client_of(*runs)
    assert ask(client, run, headers, key).status_code == status
    assert 'data-running="no"' in client.get("/export").text and ".zip" not in client.get("/export").text


@pytest.mark.parametrize("name", ["gallery.zip", "..%2f..%2fetc%2fpasswd", "%2e%2e"])
def test_nothing_but_the_export_is_downloaded(runs, client_of, name):
    assert client_of(*runs).get(f"/export/{name}").status_code == 404


def test_one_at_a_time_told_as_it_goes_on_and_the_last_is_kept(tmp_path):
    go, places = threading.Semaphore(0), []

    def make(sources, place, far):
        places.append(place)
        far(3, 4)
        assert go.acquire(timeout=60)
        if sources == ["too many"]:
            raise ConfigError("An exported site has at most 5,000 pages.")
        if sources == ["broken"]:
            raise ZeroDivisionError
        place.mkdir()
        (place / "index.html").write_text("here")
        return [f"1 page in {place}", "Left out: 2 votes.", "Open it."]

    exports = page.Exports(make)
    exports.begin(["first"])
    until(lambda: exports.far.left == 4)
    exports.begin(["second"])  # while the first is made: nothing more
    assert exports.far == page.Far(True, 3, 4)
    go.release()
    until(lambda: not exports.far.running)
    assert len(places) == 1 and exports.far.lines == ["1 page.", "Left out: 2 votes."]
    first = exports.far.file
    assert first.is_file() and zipfile.ZipFile(first).namelist()[-1].endswith("/index.html")
    for sources, words in ((["too many"], "at most 5,000 pages"), (["broken"], "ZeroDivisionError")):
        exports.begin(sources)
        go.release()
        until(lambda: not exports.far.running)
        assert words in exports.far.problem and exports.far.file is None and not first.exists()
