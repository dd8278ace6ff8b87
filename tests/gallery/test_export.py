"""The static site: every page once, names that every disk takes, pictures beside them, nothing of this machine."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest

from diffrl.errors import ConfigError
from diffrl.gallery import export
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.export import Hidden, export_site
from diffrl.gallery.records import Answer
from diffrl.gallery.site import PAGES
from diffrl.gallery.sources import find_sources
from diffrl.gallery.static_links import StaticLinks
from tests.gallery import made_trees
from tests.gallery.made import Elements, keep_columns, make_run

OPTIONS = {"votes": Path("votes.jsonl")}
PORTABLE = re.compile(r"[A-Za-z0-9._-]+")


def home(site, query):
    """A start page that leads to one page a run, and back to itself."""
    links = [site.links.page("run", run=source.key) for source in site.sources]
    return Answer("".join(f'<a href="{link}"></a>' for link in [*links, *links, site.links.page("home")]))


def run(site, query):
    """All pictures of a run, and files that belong to it."""
    source = site.run(query.text("run"))
    samples = source.samples(source.states()[0], [brief.id for brief in source.briefs(source.states()[0], None)])
    pictures = "".join(str(site.image(source, sample.file, sample.prompt, size=128)) for sample in samples)
    others = [("curves.csv", {"run": source.key}), ("tree", {"run": source.key, "tree": "0"})]
    links = "".join(f'<a href="{site.links.page(name, **values)}"></a>' for name, values in others)
    return Answer(f'<link href="{site.links.static("gallery.css")}">{pictures}{links}{source.path}/metrics.jsonl')


def csv(site, query):
    return Answer("iteration,value\n", "text/csv", filename="curves.csv")


def broken(site, query):
    raise GalleryError(f"The tree of {site.run(query.text('run')).path} cannot be read.", 503)


def plain(site, query):
    return Answer("<p>words</p>")


def drawings(site, query):
    links = [
        site.links.page(name, run=source.key) for name in ("curves.csv", "preferences.jsonl") for source in site.sources
    ]
    return Answer("".join(f'<a href="{link}"></a>' for link in links))


def endless(site, query):
    return Answer(f'<a href="{site.links.page("home", page=query.whole("page", 0) + 1)}"></a>')


@pytest.fixture
def small_pages(monkeypatch):
    """Pages of this module in place of the gallery's."""
    names = {"home": "home", "run": "run", "curves.csv": "csv", "tree": "broken", "compare": "plain", "curves": "plain"}
    names["votes"] = "plain"
    for name, function in names.items():
        monkeypatch.setitem(PAGES, name, f"{__name__}:{function}")


def addresses(folder: Path) -> dict[str, list[str]]:
    """What each page of a site points to."""
    names = ("href", "src", "data-full", "poster", "action")
    pages = {page.name: Elements(page.read_text("utf-8")).found for page in folder.glob("*.html")}
    return {
        page: [value for _, attributes in found for name, value in attributes.items() if name in names and value]
        for page, found in pages.items()
    }


def test_every_page_that_is_linked_to_is_there_and_every_address_leads_somewhere(small_pages, tmp_path):
    from PIL import Image

    made, _ = (make_run(tmp_path / "runs" / name, size=200) for name in ("one", "two"))
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in made.rglob("*")}
    lines = export_site(find_sources([tmp_path / "runs"]), tmp_path / "site", OPTIONS)
    site = tmp_path / "site"
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in made.rglob("*")} == before, "only read"
    assert {path.name for path in site.glob("*.*")} == {
        *("index.html", "run-one.html", "run-two.html", "tree-one-0.html", "tree-two-0.html"),
        *("curves-one.csv", "curves-two.csv", "compare.html", "curves.html", "votes.html"),
    }
    found = [address for page in addresses(site).values() for address in page]
    assert len(found) > 30
    for address in found:
        assert (site / address).is_file() or address.startswith("#"), address
        assert "?" not in address and not address.startswith("/")
    # 6 evaluation pictures a run, each as a thumbnail of 128 pixels and as it is
    assert len(list(site.glob("media/*.webp"))) == 24
    for thumbnail in site.glob("media/*-128.webp"):
        with Image.open(thumbnail) as image:
            assert image.size == (128, 128)
    whole = (site / "media" / "one-samples-eval-000000-0-0.webp").read_bytes()
    assert whole == (made / "samples" / "eval-000000" / "0-0.webp").read_bytes()
    assert "10 pages, 24 images" in lines[0] and str(site / "index.html") in lines[-1]
    assert any("2 pages could only say why" in line and "tree-one-0.html" in line for line in lines)


def test_a_small_picture_is_its_own_thumbnail(small_pages, tmp_path):
    made = make_run(tmp_path / "runs" / "one", size=32)
    export_site(find_sources([made]), tmp_path / "site", OPTIONS)
    assert len(list((tmp_path / "site").glob("media/*"))) == 6


@pytest.mark.parametrize("name", ["a#b?c%20d", "日本", "x" * 200])
def test_odd_names_of_runs_give_names_that_every_disk_takes(small_pages, tmp_path, name):
    make_run(tmp_path / "runs" / name)
    site = tmp_path / "päge # 1" / "site?"
    export_site(find_sources([tmp_path / "runs"]), site, OPTIONS)
    for path in site.rglob("*"):
        assert PORTABLE.fullmatch(path.name) and len(path.name) < 110, path
    for page in addresses(site).values():
        for address in page:
            assert address == "#main" or (site / unquote(address)).is_file()


def test_names_tell_apart_what_differs_only_in_case_or_in_what_was_left_out():
    links = StaticLinks(lambda *wanted: "")
    given = [{"run": "Demo"}, {"run": "demo"}, {"run": "de mo"}, {"run": "de_mo"}, {"run": "de#mo"}, {"tree": "demo"}]
    given += [{"run": ["a", "b"]}, {"run": "a-b"}, {"run": "a", "tree": "b"}, {"prompt": "é"}, {"prompt": "è"}]
    files = [links.page("run", **values) for values in given]
    assert len({file.lower() for file in files}) == len(files)
    assert files == [links.page("run", **values) for values in given]
    assert len(links.pending) == len(files)
    assert links.page("home") == "index.html" and links.page("curves.csv", run="a") == "curves-a.csv"
    assert links.page("run", run="a", prompt="", page=None) == links.page("run", run="a")


def test_missing_and_broken_pictures_become_a_sign(small_pages, tmp_path):
    made = make_run(tmp_path / "runs" / "one", size=200)
    (made / "samples" / "eval-000000" / "0-0.webp").unlink()
    (made / "samples" / "eval-000000" / "0-1.webp").write_bytes(b"no image")
    lines = export_site(find_sources([made]), tmp_path / "site", OPTIONS)
    assert addresses(tmp_path / "site")["run-one.html"].count("media/missing.svg") == 3  # both of the first
    assert "<svg" in (tmp_path / "site" / "media" / "missing.svg").read_text()
    assert any("3 images could not be read" in line for line in lines)


def test_pages_name_runs_and_not_where_they_lie(small_pages, tmp_path):
    place = tmp_path / "a & b"
    make_run(place / "runs" / "one")
    (tmp_path / "link").symlink_to(place, target_is_directory=True)
    export_site(find_sources([tmp_path / "link" / "runs"]), tmp_path / "site", OPTIONS)
    texts = [page.read_text("utf-8") for page in (tmp_path / "site").glob("*.*")]
    assert not any(str(tmp_path) in text for text in texts)
    assert any("one/metrics.jsonl" in text for text in texts)
    assert any("The tree of one cannot be read." in text for text in texts)


def test_where_runs_were_written_to_is_not_told_by_their_configuration(tmp_path):
    """A run that was moved since still names the place in its configuration."""
    run = keep_columns(make_run(tmp_path / "moved" / "one", iterations=2), "held_out/shapes")
    config = (run / "config.yaml").read_text().replace("dir: runs", "dir: '/srv/a & b/runs of me'")
    (run / "config.yaml").write_text(
        config + f"other: {Path.home()}/models/sd3\nfar: /srv/a & b/runs of me/two/x.png\n"
    )
    hidden = Hidden(find_sources([run]))
    assert hidden.places("dir: '/srv/a & b/runs of me'") == "dir: '…'"
    export_site(find_sources([run]), tmp_path / "site", OPTIONS)
    pages = {page.name: page.read_text("utf-8") for page in (tmp_path / "site").glob("*.html")}
    assert len(pages) > 5 and not [name for name, text in pages.items() if "runs of me" in text]
    assert not [name for name, text in pages.items() if str(Path.home()) in text]
    assert "~/models/sd3" in pages["run-one.html"] and "…/two/x.png" in pages["report-one.html"]


def test_what_is_no_page_is_never_a_page_about_an_error(small_pages, monkeypatch, tmp_path):
    monkeypatch.setitem(PAGES, "curves.csv", f"{__name__}:broken")
    monkeypatch.setitem(PAGES, "preferences.jsonl", f"{__name__}:broken")
    monkeypatch.setitem(PAGES, "home", f"{__name__}:drawings")
    made = make_run(tmp_path / "runs" / "one")
    lines = export_site(find_sources([made]), tmp_path / "site", OPTIONS)
    assert not list((tmp_path / "site").glob("*.csv")) and not list((tmp_path / "site").glob("*.jsonl"))
    assert any(line.startswith("2 files could not be made: ") and "curves-one.csv" in line for line in lines)


def test_of_many_trees_the_newest_are_shown(monkeypatch, tmp_path):
    run = keep_columns(make_run(tmp_path / "runs" / "one", iterations=2), "held_out/shapes")
    for iteration in range(8):
        made_trees.write(run, made_trees.pool(2, 2, 0, iteration=iteration, group=0))
    monkeypatch.setattr(export, "MOST_TREES", 3)
    lines = export_site(find_sources([run]), tmp_path / "site", OPTIONS)
    assert sorted(page.name for page in (tmp_path / "site").glob("tree-*")) == [
        f"tree-one-00000{iteration}-0.html" for iteration in (5, 6, 7)
    ]
    assert "Of one the newest 3 of 8 trees are shown." in lines and not any("could only say" in line for line in lines)
    assert "the newest 3 of 8" in (tmp_path / "site" / "trees-one.html").read_text("utf-8")
    for page, found in addresses(tmp_path / "site").items():
        assert not [one for one in found if one.endswith(".html") and not (tmp_path / "site" / one).is_file()], page


def test_only_whole_paths_are_taken_out(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/me")
    make_run(tmp_path / "runs" / "one")
    hidden = Hidden(find_sources([tmp_path / "runs" / "one"]))
    assert hidden.places("/home/me/models, /home/me.") == "~/models, ~."
    assert hidden.places("/home/melanie https://a.org/home/me") == "/home/melanie https://a.org/home/me"
    assert hidden.places(f"{tmp_path}/runs/one/x and {tmp_path}/runs/one-b") == "one/x and …/one-b"


def test_a_destination_is_new_or_empty(small_pages, tmp_path):
    made = make_run(tmp_path / "runs" / "one")
    full, file, empty = tmp_path / "full", tmp_path / "file", tmp_path / "empty"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    file.write_text("mine")
    empty.mkdir()
    for taken in (full, file, made, made / "site", tmp_path / "runs" / "one" / ".." / "one" / "x"):
        with pytest.raises(ConfigError, match="never"):
            export_site(find_sources([made]), taken, OPTIONS)
    assert [path.name for path in full.iterdir()] == ["mine.txt"] and file.read_text() == "mine"
    export_site(find_sources([made]), empty, OPTIONS)
    assert (empty / "index.html").is_file()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_was_interrupted_leaves_nothing(small_pages, monkeypatch, tmp_path, error):
    made = make_run(tmp_path / "runs" / "one")

    def full(*arguments, **more):
        raise error("no space left")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(error):
        export_site(find_sources([made]), tmp_path / "out" / "site", OPTIONS)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_site_without_end_is_refused(small_pages, monkeypatch, tmp_path):
    monkeypatch.setitem(PAGES, "home", f"{__name__}:endless")
    monkeypatch.setattr(export, "MOST_PAGES", 30)
    made = make_run(tmp_path / "runs" / "one")
    with pytest.raises(ConfigError, match="at most 30 pages"):
        export_site(find_sources([made]), tmp_path / "site", OPTIONS)
    assert not (tmp_path / "site").exists()
