"""News of a run at work in a real Chromium: shown without a reload, and never at the reader's cost."""

from __future__ import annotations

import json

import pytest

from tests.gallery.made import add_evaluation, make_run, metrics_rows

pytestmark = pytest.mark.browser


@pytest.fixture
def run(tmp_path):
    """A run that is not finished."""
    return make_run(tmp_path / "runs" / "made", iterations=2, finished=False)


def go_on(run, iteration: int) -> None:
    """The run trains to an iteration and evaluates there."""
    add_evaluation(run, iteration)
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in metrics_rows(iteration)[iteration - 1 :])


def wait(page, what: str, seconds: float = 12) -> None:
    """Until a piece of JavaScript is true; the page's policy forbids Playwright's own waiting."""
    for _ in range(int(seconds / 0.05)):
        if page.evaluate(what):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{what} did not come true: {page.locator('#main').inner_text()[:500]}")


def opened(page, address: str) -> None:
    """A page whose first question was answered; `window.alive` goes with a reload."""
    with page.expect_response(lambda answer: "/state" in answer.url):
        page.goto(address)
    page.evaluate("window.alive = true; window.heard = []")
    page.evaluate("document.addEventListener('run-changed', (event) => heard.push(event.detail.run))")
    page.wait_for_timeout(1600)  # whatever was written before the page was asked for is no news


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
    wait(page, "document.getElementById('main').outerHTML.includes('eval-000004/')")
    assert page.evaluate("window.alive") is True and page.evaluate("heard.includes('made')")
    assert page.locator("main details").first.evaluate("(one) => one.open")
    # The link at this place now leads to the new evaluation; whoever was on it still is.
    assert page.evaluate("[...document.querySelectorAll('main a[href]')].indexOf(document.activeElement)") == 2
    assert page.evaluate("scrollY") == 120
    page.wait_for_timeout(200)
    assert page.evaluate(
        "[...document.querySelectorAll('main img')].every((image) => !image.complete || image.naturalWidth)"
    )


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


def test_pages_that_draw_their_news_themselves_are_told_and_left_alone(served, page, run):
    opened(page, f"{served(run)}/curves?run=made")
    page.evaluate("window.old = document.getElementById('main')")
    go_on(run, 4)
    wait(page, "heard.length > 0")
    page.wait_for_timeout(500)
    assert page.evaluate("window.old === document.getElementById('main') && window.alive")


def test_a_page_without_news_stays_as_it_is(served, page, run):
    opened(page, f"{served(run)}/samples?run=made&state=eval-0")
    page.evaluate("window.old = document.querySelector('main .item')")
    with (run / "log.txt").open("a") as file:
        file.write("a line that this page does not show\n")
    wait(page, "heard.length > 0")
    page.wait_for_timeout(700)
    assert page.evaluate("window.old === document.querySelector('main .item')")


def test_a_gallery_that_ended_is_told(page, run, served):
    opened(page, f"{served(run)}/run?run=made")
    page.route("**/state*", lambda route: route.abort())
    wait(page, "document.getElementById('live').textContent.includes('no longer answers')", 25)
    page.unroute("**/state*")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    wait(page, "document.getElementById('live').hidden || !document.getElementById('live').textContent")
