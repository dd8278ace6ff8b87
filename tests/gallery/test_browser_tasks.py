"""Ways from the start page to what people open the gallery for, by clicks; then on a phone, and by keys alone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from diffrl.gallery.export import export_site
from diffrl.gallery.sources import find_sources
from diffrl.gallery.votes import Side, add_vote
from tests.gallery import made_trees
from tests.gallery.made import keep_columns, make_run
from tests.patience import until

pytestmark = [pytest.mark.browser, pytest.mark.long]

PROMPTS = tuple(f"scene {number:02d} with a red circle" for number in range(20))
FALLS = {3: 0.25, 7: 0.2, 11: 0.3, 13: 0.15, 17: 0.1}
"""How much the prompts that get worse lose by the best method."""
GAIN = {"grpo": 0.1, "nft": 0.04, "tilt": 0.4}
"""What all other prompts gain by each method."""


def score_by(method):
    """A reward by iteration, group and root: all methods begin with the same base model."""

    def score(iteration, group, root):
        change = -FALLS[group] if method == "tilt" and group in FALLS else GAIN[method] * (1 + group % 3 / 10)
        return 0.35 + 0.01 * (group % 5) + change * iteration / 4

    return score


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three methods; the first has a pool of candidates and a forest with turning points."""
    folder, found = tmp_path_factory.mktemp("tasks"), []
    for method in GAIN:
        options = {"prompts": PROMPTS, "roots": 1, "score": score_by(method)}
        found.append(keep_columns(make_run(folder / method, **options), "held_out/shapes"))
    made_trees.write(found[0], made_trees.forest())
    made_trees.write(found[0], made_trees.pool(iteration=21))
    return found


class Mouse:
    """Clicks."""

    options = {"viewport": {"width": 1280, "height": 800}}

    def __init__(self, page):
        self.page = page

    def press(self, target):
        """Press a link, a button or a node that is in sight."""
        target.click()


class Finger(Mouse):
    """Taps on a phone."""

    options = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}

    def press(self, target):
        target.tap()


class Keys(Mouse):
    """Tab and Enter; arrow keys within a tree and a list of samples."""

    def press(self, target):
        for _ in range(400):
            if target.evaluate("one => one === document.activeElement"):
                return self.page.keyboard.press("Enter")
            self.page.keyboard.press(target.evaluate(NEXT_KEY))
        raise AssertionError("keys do not reach it")


NEXT_KEY = """target => {
  const here = document.activeElement;
  if (!here.matches('[role=treeitem]') || !target.matches('[role=treeitem]')) return 'Tab';
  const level = (one) => Number(one.getAttribute('aria-level'));
  const [from, to] = [here, target].map((one) => one.getBoundingClientRect());
  if (level(here) < level(target)) return 'ArrowRight';
  if (Math.abs(to.y - from.y) > 2) return to.y > from.y ? 'ArrowDown' : 'ArrowUp';
  return to.x > from.x ? 'ArrowRight' : 'ArrowLeft';
}"""
"""Down the tree to the target's depth, then beside it: what an arrow key does in a drawing."""


MORE = [pytest.param(way, id=name, marks=pytest.mark.slow) for way, name in ((Finger, "phone"), (Keys, "keys"))]


@pytest.fixture(params=[pytest.param(Mouse, id="mouse"), *MORE])
def way(request, context_of):
    """How it is done; a page wider than its window, or an error in a script, fails the test."""
    page = context_of(bypass_csp=True, reduced_motion="reduce", **request.param.options).new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield request.param(page)
    assert errors == []
    assert page.evaluate("document.documentElement.scrollWidth") <= request.param.options["viewport"]["width"]


def last(method):
    return np.array([score_by(method)(4, group, 0) for group in range(len(PROMPTS))])


def run_of(way, method):
    """From the start page to a run."""
    way.press(way.page.locator("#runs th").get_by_role("link", name=method, exact=True))
    way.page.locator("[data-page=run]").wait_for()
    way.page.wait_for_load_state()  # its scripts too: before them an image is a link to itself


def opacity(page, number):
    """What a node is drawn with; it fades."""
    return page.locator(f"#node-{number}").evaluate("one => getComputedStyle(one).opacity")


def test_which_step_turned_and_what_its_siblings_became(way, served, runs):
    page = way.page
    page.goto(served(*runs))
    run_of(way, "grpo")
    way.press(page.get_by_role("link", name="iteration 20", exact=True))
    page.locator("#panel").wait_for(state="attached")
    (turned,) = [node.id for node in made_trees.forest().nodes if node.turning and node.value == 1.0]
    way.press(page.locator(f"#node-{turned}"))
    until(page.locator("#panel").inner_text)
    said = page.locator("#panel").inner_text()
    assert "yes ◆" in said and "What the 2 branches of 2 became" in said
    cards = page.locator("#panel .siblings figcaption").all_inner_texts()
    assert [card.partition("; ")[2] for card in cards] == ["2 images, 1.000", "2 images, 0.250"]
    for number in (turned, turned + 3):
        until(lambda number=number: opacity(page, number) == "1")
    until(lambda: opacity(page, 1) == "0.5")
    assert page.locator("#panel .siblings img").first.bounding_box()["width"] >= 100
    way.press(page.locator("#panel .siblings .open").last)
    page.locator("#lightbox[open]").wait_for()
    assert page.locator(".pane").count() == 2


SHOWN = """() => {
  document.querySelectorAll("main details").forEach((one) => { one.open = true; });
  const parts = "h1, .headline, .item, .scatter text, .story, main table, .scores, .log";
  const there = [...document.querySelectorAll(parts)].filter((one) => one.checkVisibility());
  const told = there.map((one) => one.textContent.replace(/\\s+/g, " ").trim());
  return told.filter((words) => /\\d/.test(words));
}"""
"""All that a page tells in numbers, folded parts too."""
WALK = {
    "which is best": (("Compare all", 20),),
    "a run": (("tilt", 20),),
    "its comparison": (("tilt", 20), ("Compare", 40)),
    "its report": (("tilt", 20), ("Report", 8)),
    "a tree": (("grpo", 20), ("iteration 20", 60)),
    "the votes": (("All votes", 10),),
}
"""Links from the start page to each page, and how many numbers it has at least."""


def test_a_colleague_sees_the_same_numbers_from_disk(context_of, served, runs, tmp_path):
    """Every number of every kind of page, and of the first ones what the live page was tested for above."""
    for number in range(4):
        sides = [Side(run.name, str(run), "eval-4", (PROMPTS[number], 0, number, 0, ""), "") for run in runs]
        for a, b in ((0, 1), (1, 2)):
            add_vote(tmp_path / "votes.jsonl", "", "s", sides[a], sides[b], "a", "b" if number else "tie")
    page = context_of(viewport={"width": 1280, "height": 800}, accept_downloads=True, bypass_csp=True).new_page()
    address = served(*runs)
    page.goto(address)
    site = tmp_path / "sent"
    export_site(find_sources([Path(run) for run in runs]), site, {"votes": tmp_path / "votes.jsonl"})
    colleague = context_of(offline=True, viewport={"width": 1280, "height": 800}).new_page()
    for what, links in WALK.items():
        told = []
        for reader, start in ((page, address), (colleague, (site / "index.html").as_uri())):
            reader.goto(start)
            for name, _ in links:
                reader.locator("main, nav").get_by_role("link", name=name, exact=True).last.click()
                reader.wait_for_load_state("load")
            told.append(reader.evaluate(SHOWN))
        live, sent = told
        assert sent == live, what
        assert sum(len(re.findall(r"\d+\.\d+|\d+", words)) for words in live) >= links[-1][1], what
        if what == "which is best":
            assert f"{(last('tilt') - last('grpo')).mean():+.3f} against grpo" in live[0]
