"""The vote in a real Chromium: by keyboard from the first pair to the results."""

from __future__ import annotations

import pytest

from diffrl.gallery.votes import read_votes
from tests.gallery.made import make_run
from tests.patience import until

pytestmark = [pytest.mark.browser, pytest.mark.long]


def go_on(page, key):
    """Press a key and wait for what it brings."""
    before = page.locator("#place").inner_text()
    page.keyboard.press(key)
    page.wait_for_function("before => document.getElementById('place')?.textContent !== before", arg=before)
    page.wait_for_function("() => !document.querySelector('.choices .picked')")
    return page.locator("#place").inner_text()


def test_a_vote_by_keyboard(tmp_path, served, page):
    prompts = ["one <b>", "two", "three", "four"]
    address = served(make_run(tmp_path / "runs" / "made", prompts=prompts, roots=1))
    votes = tmp_path / "votes.jsonl"
    page.goto(f"{address}/vote?run=made&voter=Ada")
    assert "made" not in page.content() and page.locator("#place").inner_text() == "1 of 4"
    first = page.locator("#prompt").inner_text()
    assert first in prompts, "markup in a prompt stays text"
    assert go_on(page, "ArrowLeft") == "2 of 4"
    assert page.locator("#prompt").inner_text() in prompts
    assert page.locator("#sides img").count() == 2
    page.wait_for_function("() => [...document.querySelectorAll('#sides img')].every((one) => one.naturalWidth === 32)")
    fetched = "performance.getEntriesByType('resource').filter((one) => one.name.includes('/vote/image/')).length"
    page.wait_for_function(f"() => {fetched} === 6")  # the third pair comes before it is asked for
    assert go_on(page, "e") == "3 of 4"
    assert go_on(page, "u") == "2 of 4"
    assert len(read_votes(votes).votes) == 1 and read_votes(votes).voided == 1
    assert go_on(page, "ArrowRight") == "3 of 4"
    assert go_on(page, "s") == "4 of 4", "skipped"
    page.locator('[value="equal"]').focus()
    page.keyboard.press(" ")
    page.wait_for_url("**/votes?*")
    found = read_votes(votes)
    assert [vote.choice == vote.left for vote in found.votes] == [True, False, False] and found.votes[
        -1
    ].choice == "tie"
    assert found.votes[0].prompt == first and {vote.voter for vote in found.votes} == {"Ada"}
    assert "3 votes" in page.locator(".verdict").inner_text()
    assert page.locator("table.given tbody tr").count() == 3
    assert page.locator("table.given .chosen").count() == 2
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Vote").click()
    page.wait_for_url("**/vote?session=*")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.route("**/vote", lambda route: route.abort() if route.request.method == "POST" else route.continue_())
    cut_off = "fetch('/vote', {method: 'POST'}).then(() => false, () => true)"
    until(lambda: page.evaluate(cut_off))
    # A page that has just been opened may lose a key: who sees nothing happen presses again.
    until(lambda: page.locator("#problem").is_visible() or page.keyboard.press("ArrowLeft"))
    assert page.locator("#place").inner_text() == "1 of 4" and len(read_votes(votes).votes) == 3


def test_keys_that_are_held_or_scroll_cast_no_votes(tmp_path, served, page):
    """A key held down votes once; who scrolls a long prompt, or the page, does not vote."""
    prompts = [f"prompt {n} " + "which goes on and on\n" * 40 for n in range(8)]
    address = served(make_run(tmp_path / "runs" / "made", prompts=prompts, roots=1))
    votes = tmp_path / "votes.jsonl"
    posts = []
    page.on("request", lambda request: posts.append(request.url) if request.method == "POST" else None)
    page.goto(f"{address}/vote")
    for place, (key, button) in enumerate((("ArrowRight", None), ("s", None), ("Enter", "left")), 2):
        if button:
            page.locator(f'[value="{button}"]').focus()
        for _ in range(5):  # the first comes from a press, the others from a key that is held
            page.keyboard.down(key)
            page.wait_for_function("n => document.getElementById('place').textContent === `${n} of 8`", arg=place)
            page.wait_for_function("() => !document.querySelector('.choices .picked')")
        page.keyboard.up(key)
    assert go_on(page, "e") == "5 of 8" and [vote.choice == "tie" for vote in read_votes(votes).votes] == [0, 0, 1]
    page.locator("#prompt").focus()
    for key in ("ArrowDown", "ArrowLeft", "ArrowRight", "e", "s", "u", " ", "Enter"):
        page.keyboard.press(key)
    page.wait_for_function("() => document.getElementById('prompt').scrollTop > 20")
    page.set_viewport_size({"width": 800, "height": 300})
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowDown")
    page.keyboard.press(" ")
    page.wait_for_function("() => scrollY > 100")
    assert go_on(page, "e") == "6 of 8" and len(posts) == 5, "of all these keys the last alone voted"
