"""The exported site in a real Chromium, opened from disk: no server, no network, nothing missing."""

from __future__ import annotations

import pytest

from diffrl.gallery.export import export_site
from diffrl.gallery.sources import find_sources
from tests.gallery import made_trees
from tests.gallery.made import keep_columns, make_run

pytestmark = [pytest.mark.browser, pytest.mark.long]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site in a folder with an odd name, which was moved since; its run is gone."""
    path = tmp_path_factory.mktemp("export")
    run = keep_columns(make_run(path / "runs" / "my run #1", size=200), "held_out/shapes", "reward/mean", "update/loss")
    made_trees.write(run, made_trees.forest())
    made_trees.write(run, made_trees.pool(iteration=21))
    export_site(find_sources([run]), path / "to share, ü" / "site", {"votes": path / "votes.jsonl"})
    (path / "to share, ü").rename(path / "elsewhere ? #1 100%")
    (path / "runs").rename(path / "gone")
    return path / "elsewhere ? #1 100%" / "site"


@pytest.fixture
def opened(page, site):
    """Its start page, without a network; everything that goes wrong fails the test."""
    wrong: list[str] = []
    page.context.set_offline(True)
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.on(
        "request",
        lambda request: wrong.append(request.url) if not request.url.startswith(("file:", "data:", "blob:")) else None,
    )
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.goto((site / "index.html").as_uri())
    yield page
    assert wrong == []


def pictures_are_there(page) -> int:
    """Every picture in view was loaded; how many there are."""
    page.wait_for_load_state("load")
    page.wait_for_function(
        "[...document.querySelectorAll('main img')].every((image) => image.complete || image.loading == 'lazy')"
    )
    images = page.locator("main img")
    failed = "image.complete && !image.naturalWidth || image.src.includes('missing.svg')"
    broken = images.evaluate_all(f"(all) => all.filter((image) => {failed}).map((image) => image.src)")
    assert broken == []
    return images.evaluate_all("(all) => all.filter((image) => image.naturalWidth).length")


def test_a_visitor_walks_through_the_site_from_disk(opened):
    page = opened
    assert pictures_are_there(page) >= 2
    assert page.locator("a[href^='vote-'], a[href^='vote.'], form[method=post]").count() == 0  # nothing can be sent
    nav = page.locator("header nav")
    for name in ("Compare", "Trees", "Curves", "Votes"):
        link = nav.get_by_role("link", name=name, exact=True)
        link.click()
        nav.locator(f"a[aria-current=page]:text-is('{name}')").wait_for()  # the page that was asked for is there
        page.locator("h1").first.wait_for()
        assert page.locator("[role=alert].message").count() == 0, name
        if name == "Compare":
            assert pictures_are_there(page) >= 6
    nav.get_by_role("link", name="Report", exact=True).click()  # one file, without the site's navigation
    page.locator(".curve svg").first.wait_for()
    assert page.url.startswith("file:")


def test_trees_curves_and_theme_work_without_a_server(opened):
    page = opened
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.locator("header nav").get_by_role("link", name="Trees", exact=True).click()
    page.get_by_role("link", name="Iteration 20, group 3").click()
    page.locator("#node-8").click()
    assert "Node 2a" in page.locator("#panel").inner_text()
    assert pictures_are_there(page) >= 8
    page.keyboard.press("n")
    page.wait_for_function("document.querySelectorAll('.node').length === 64")
    page.locator("header nav").get_by_role("link", name="Curves", exact=True).click()
    drawn = page.locator("main .chart canvas")
    drawn.nth(2).wait_for()
    assert drawn.count() >= 3
