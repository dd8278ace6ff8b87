"""A comparison or a tree as one file: it needs no server, no network and no file beside it."""

import re

import pytest

from tests.gallery import made_trees
from tests.gallery.made import make_run
from tests.gallery.test_report import Parsed

PAGES = {"compare": "/compare.html?run=made", "tree": "/tree.html?run=made"}


@pytest.fixture
def with_tree(made):
    made_trees.write(made, made_trees.forest())
    return made


@pytest.mark.parametrize("page", PAGES)
def test_nothing_outside_is_asked_for_and_no_folder_named(client_of, with_tree, page):
    client = client_of(with_tree)
    offered = re.findall(r'href="(/[^"]*\.html[^"]*)"', client.get(f"/{page}?run=made").text)
    answer = client.get(offered[0].replace("&amp;", "&"))
    assert answer.status_code == 200 and "attachment" in answer.headers["content-disposition"]
    parsed = Parsed(answer.text)
    assert [one for one in parsed.addresses if one and not one.startswith(("data:", "#"))] == []
    assert sum(image.startswith("data:image/") for image in parsed.images) > 2
    assert str(with_tree.parent) not in answer.text


def test_the_first_rows_of_what_was_asked_for(client_of, tmp_path):
    client = client_of(make_run(tmp_path / "runs" / "made"), make_run(tmp_path / "runs" / "other"))
    asked = "columns=made@eval-4&columns=other@eval-4&sort=loss&prompt=a"
    page, file = (client.get(f"/{name}?{asked}").text for name in ("compare", "compare.html"))
    rows = re.compile(r'data-id="(\d+)"')
    assert rows.findall(page) and rows.findall(file)[: len(rows.findall(page))] == rows.findall(page)
    assert client.get("/compare.html?columns=nobody@eval-4").status_code == 404


def test_the_plot_leads_to_rows_of_the_file_alone(client_of, tmp_path, monkeypatch):
    monkeypatch.setattr("diffrl.gallery.pages.one_file.ROWS", 3)
    client = client_of(make_run(tmp_path / "runs" / "made"), make_run(tmp_path / "runs" / "other"))
    file = client.get("/compare.html?columns=made@eval-4&columns=other@eval-0&sort=loss").text
    here = set(re.findall(r'data-id="(\d+)"', file))
    led = re.findall(r'<a href="#row-(\d+)"', file) + " ".join(re.findall(r'data-like="([\d ]+)"', file)).split()
    assert len(here) == 3 and led and set(led) == here


@pytest.mark.browser
@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_it_works_without_a_network(client_of, with_tree, page, tmp_path, name):
    file, wrong = tmp_path / "sent" / "page.html", []
    file.parent.mkdir()
    file.write_bytes(client_of(with_tree).get(PAGES[name]).content)
    page.context.set_offline(True)
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.goto(file.as_uri())
    page.locator("a.open").first.click()
    page.locator("#lightbox[open] img").first.wait_for()
    assert page.locator("#lightbox img").first.evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 0
    page.keyboard.press("Escape")
    if name == "compare":
        page.get_by_role("searchbox").fill("nothing has this")
        page.get_by_text("Nothing is left").wait_for()
    assert wrong == []
