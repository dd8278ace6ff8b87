"""News of a run at work in a real Chromium: shown without a reload, and never at the reader's cost."""

from __future__ import annotations

import json
import os
import time

import pytest

from diffrl.gallery import progress
from tests.gallery.made import add_evaluation, make_run, metrics_rows
from tests.patience import LONG

pytestmark = [pytest.mark.browser, pytest.mark.long]


@pytest.fixture
def run(tmp_path):
    """A run that is not finished, last written a minute ago: that is no news to a page which is opened now."""
    made = make_run(tmp_path / "runs" / "made", iterations=2, finished=False)
    for path in made.rglob("*"):
        os.utime(path, (time.time() - 60,) * 2)
    return made


def go_on(run, iteration: int) -> None:
    """The run trains to an iteration and evaluates there."""
    add_evaluation(run, iteration)
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in metrics_rows(iteration)[iteration - 1 :])


def wait(page, what: str, looking: bool = True) -> None:
    """Until a piece of JavaScript is true; a page asks at once when somebody looks at it again, or within seconds."""
    end = time.monotonic() + LONG
    while not page.evaluate(what):
        assert time.monotonic() < end, f"{what} did not come true: {page.locator('#main').inner_text()[:500]}"
        if looking:
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for_timeout(50)


def opened(page, address: str) -> None:
    """A page whose first question was answered; `window.alive` goes with a reload."""
    with page.expect_response(lambda answer: "/state" in answer.url):
        page.goto(address)
    page.evaluate("window.alive = true; window.heard = []")
    page.evaluate("document.addEventListener('run-changed', (event) => heard.push(event.detail.run))")


def test_a_new_evaluation_is_shown_without_a_reload_and_the_place_is_kept(served, page, run):
    opened(page, f"{served(run)}/run?run=made")
    assert "eval-4" not in page.content()
    details = page.locator("main details").first
    details.evaluate("(one) => { one.open = true; }")
    page.evaluate("document.querySelectorAll('main a[href]')[2].focus()")
    page.set_viewport_size({"width": 1280, "height": 400})
    page.evaluate("scrollTo({ top: 120, behavior: 'instant' })")
    assert page.evaluate("scrollY") == 120
    go_on(run, 4)
    wait(page, "document.getElementById('main').outerHTML.includes('eval-000004/')", looking=False)
    assert page.evaluate("window.alive") is True and page.evaluate("heard.includes('made')")
    assert page.locator("main details").first.evaluate("(one) => one.open")
    # The link at this place now leads to the new evaluation; whoever was on it still is.
    assert page.evaluate("[...document.querySelectorAll('main a[href]')].indexOf(document.activeElement)") == 2
    assert page.evaluate("scrollY") == 120
    pictures = "[...document.querySelectorAll('main img')]"
    wait(page, f"{pictures}.every((image) => image.complete || image.loading === 'lazy')")
    assert page.evaluate(f"{pictures}.every((image) => !image.complete || image.naturalWidth)")


def test_who_is_busy_is_asked_first(served, page, run):
    opened(page, f"{served(run)}/compare?run=made")
    field = page.locator("main input[name=prompt]")
    field.fill("two gre")
    go_on(run, 4)
    wait(page, "!document.getElementById('live').hidden")
    live = page.locator("#live")
    assert "iteration 4, evaluation 4" in live.inner_text()
    assert field.input_value() == "two gre" and page.evaluate("window.alive") is True
    assert "eval-000004/" not in page.locator("main").inner_html()
    live.get_by_role("button", name="Show").click()
    wait(page, "document.getElementById('main').outerHTML.includes('eval-000004/')")
    assert page.evaluate("window.alive") is True and live.is_hidden()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")  # rows work on in what is new
    page.keyboard.press("Enter")
    page.locator("#lightbox[open]").wait_for()


def test_pages_that_draw_their_news_themselves_are_told_and_left_alone(served, page, run):
    opened(page, f"{served(run)}/curves?run=made")
    page.evaluate("window.old = document.getElementById('main')")
    go_on(run, 4)
    wait(page, "heard.length > 0")
    page.wait_for_timeout(500)
    assert page.evaluate("window.old === document.getElementById('main') && window.alive")


def test_news_that_could_not_be_fetched_are_fetched_again(served, page, run):
    """The gallery is busy once, as with a store that is being written: the page must not stay old."""
    opened(page, f"{served(run)}/run?run=made")
    failed = []

    def busy_once(route):
        first = not failed and route.request.resource_type == "fetch"
        failed.append(route.request.url) if first else None
        route.fulfill(status=503, body="busy") if first else route.continue_()

    page.route("**/run?run=made", busy_once)
    go_on(run, 4)
    wait(page, "document.getElementById('main').outerHTML.includes('eval-000004/')")
    assert len(failed) == 1 and page.evaluate("window.alive && heard.includes('made')")


def test_a_run_that_was_killed_stops_on_an_open_page(served, page, run, monkeypatch):
    """No file of it changes any more: only the time passes."""
    monkeypatch.setattr(progress, "FRESH", 10**6)
    opened(page, f"{served(run)}/run?run=made")
    chip = "document.querySelector('main .chip').textContent"
    assert page.evaluate(chip) == "running"
    monkeypatch.setattr(progress, "FRESH", 1)
    wait(page, f"{chip} === 'stopped'")
    assert page.evaluate("window.alive")


def test_a_gallery_that_ended_is_told(page, run, served):
    opened(page, f"{served(run)}/run?run=made")
    page.route("**/state*", lambda route: route.abort())
    wait(page, "document.getElementById('live').textContent.includes('no longer answers')")
    page.unroute("**/state*")
    wait(page, "document.getElementById('live').hidden || !document.getElementById('live').textContent")
