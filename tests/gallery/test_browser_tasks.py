"""What people open the gallery for, task by task from its start page, by clicks; then on a phone, and by keys alone.

The numbers are known beforehand: scores are written down here, and what pages say is held against NumPy.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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
WORST = (11, 3, 7, 13, 17)
GAIN = {"grpo": 0.1, "nft": 0.04, "tilt": 0.4}
"""What all other prompts gain by each method."""
BRIGHTNESS = {"grpo": 80, "nft": 140, "tilt": 220}
"""Of all images of the last evaluation of a method, in [0, 255]."""
REASON = "the blue square is missing"


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
        options = {"prompts": PROMPTS, "roots": 1, "score": score_by(method), "notes": {"shapes": REASON}}
        found.append(keep_columns(make_run(folder / method, **options), "held_out/shapes"))
        for file in (found[-1] / "samples" / "eval-000004").iterdir():
            Image.new("RGB", (32, 32), (BRIGHTNESS[method],) * 3).save(file, lossless=True)
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


def test_which_of_three_is_best_and_by_how_much(way, served, runs):
    page = way.page
    page.goto(served(*runs))
    way.press(page.get_by_role("link", name="Compare all", exact=True).last)
    page.locator("#score-table").wait_for()
    difference = last("tilt") - last("grpo")
    heading = page.locator("h1").inner_text()
    assert heading.startswith("Best: tilt") and f"{difference.mean():+.3f} against grpo" in heading.replace("−", "-")
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    low, high = (difference.mean() + sign * 2.093 * error for sign in (-1, 1))  # Student's t, 19 degrees of freedom
    row = page.locator("#score-table tr").filter(has_text="tilt").inner_text().replace("−", "-")
    assert f"{last('tilt').mean():.3f}" in row and f"{difference.mean():+.3f}" in row
    assert f"{low:+.3f} to {high:+.3f}" in row
    link = page.locator("#score-table tr").filter(has_text="tilt").get_by_role("link", name="5", exact=True)
    way.press(link)
    page.wait_for_url("**show=worse**")
    assert page.locator(".item:visible").count() == np.sum(difference < 0) == 5


def test_the_five_that_got_worse_most_and_why(way, served, runs):
    page = way.page
    page.goto(served(*runs))
    run_of(way, "tilt")
    rows = page.locator(".worst .item")
    assert rows.locator("> .prompt").all_inner_texts() == [PROMPTS[group] for group in WORST]
    assert all(REASON in text for text in rows.all_inner_texts())
    if isinstance(way, Keys):  # a list of samples is walked by j
        for _ in range(60):
            page.keyboard.press("j")
            if rows.first.evaluate("one => one === document.activeElement"):
                break
        page.keyboard.press("Enter")
    else:
        way.press(rows.first.locator(".open").first)
    page.locator("#lightbox[open]").wait_for()
    assert page.locator(".lightbox-said .prompt").inner_text() == PROMPTS[WORST[0]]
    assert REASON in page.locator(".lightbox-notes").inner_text()
    assert page.locator(".lightbox-table tr").filter(has_text="shapes").first.inner_text().endswith("−0.300")


def test_one_sample_through_training(way, served, runs):
    page = way.page
    page.goto(served(*runs))
    run_of(way, "grpo")
    if isinstance(way, Keys):
        page.keyboard.press("j")
        page.keyboard.press("Enter")
    else:
        way.press(page.locator(".pairs .open").first)
    output = page.locator(".lightbox-walk output")
    output.wait_for()
    page.evaluate("""() => {
      window.seen = [];
      const look = () => seen.push(document.querySelectorAll(".pane img")[1]?.src.match(/eval-0*(\\d+)/)?.[1]);
      new MutationObserver(look).observe(document.querySelector(".lightbox-walk output"), { childList: true });
    }""")
    way.press(page.locator('[data-do="play"]'))
    until(lambda: page.evaluate("seen.length") >= 3 and output.inner_text().endswith("3 of 3"))
    assert output.inner_text() == "evaluation 4, best checkpoint, 3 of 3"
    way.press(page.locator('[data-mode="flip"]'))
    way.press(page.locator('[data-do="blink"]'))
    page.evaluate("""() => {
      window.turns = 0;
      const pane = document.querySelector(".stacked");
      new MutationObserver(() => { turns += 1; }).observe(pane, { attributeFilter: ["class"] });
    }""")
    until(lambda: page.evaluate("turns") >= 2)
    assert page.locator('[data-do="blink"]').get_attribute("aria-pressed") == "true"
    page.keyboard.press("Escape")
    until(lambda: not page.locator("#lightbox").is_visible())
    assert page.evaluate("stage.blinking") == 0


def test_why_a_candidate_was_taken(way, served, runs):
    page = way.page
    page.goto(served(*runs))
    run_of(way, "grpo")
    way.press(page.get_by_role("link", name="iteration 21", exact=True))
    page.locator("#panel").wait_for(state="attached")
    chosen = next(node for node in made_trees.pool().nodes if node.leaf.chosen == "best 1")
    way.press(page.locator(f"#node-{chosen.id}"))
    until(page.locator("#panel").inner_text)
    said = page.locator("#panel").inner_text()
    assert "Generated again" in said and "best 1" in said and "1.000, 1 of 64" in said
    assert f"{chosen.leaf.total:.3f}" in said


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


def choose(way, field, words):
    """An entry of a list, by arrow keys where there are any; a phone's own list is out of a page's reach."""
    said = "one => one.selectedOptions[0].textContent"
    if isinstance(way, Finger):
        field.select_option(words)
    else:
        field.focus()
        way.page.keyboard.press("Home")
        for _ in range(field.locator("option").count()):
            if field.evaluate(said) == words:
                break
            way.page.keyboard.press("ArrowDown")
    assert field.evaluate(said) == words


BRIGHT = """async (side) => {
  const image = document.querySelectorAll("#sides img")[side], canvas = document.createElement("canvas");
  await image.decode();
  canvas.getContext("2d").drawImage(image, 0, 0, 1, 1, 0, 0, 1, 1);
  return Math.max(...canvas.getContext("2d").getImageData(0, 0, 1, 1).data.slice(0, 3));
}"""
"""What a voter sees of the left image (0) or the right one (1): its first pixel."""


def test_ten_blind_votes_the_ranking_and_the_pairs(way, served, runs):
    """The voter prefers brighter images, and errs once in five: log odds of (4 + 1/2) / (1 + 1/2) = 3 between
    neighbours, as no cycle of pairs asks for a compromise; so against the mean of three 3/4, 1/2 and 1/4 are preferred.
    """
    page = way.page
    page.goto(served(*runs))
    preferred = []
    for pair in (("grpo", "nft"), ("nft", "tilt")):
        way.press(page.get_by_role("link", name="All votes", exact=True))
        page.locator("[data-page=votes]").wait_for()
        for name, which in zip("ab", pair, strict=True):
            choose(way, page.locator(f"select[name={name}]"), f"{which} · evaluation 4")
        way.press(page.get_by_role("button", name="Vote", exact=True))
        for vote in range(5):
            page.wait_for_function(
                "n => document.getElementById('place')?.textContent.startsWith(`${n} of`)"
                "&& !document.querySelector('.choices .picked')",
                arg=vote + 1,
            )
            assert not any(name in page.locator("main").inner_text() for name in GAIN)
            left, right = (page.evaluate(BRIGHT, side) for side in (0, 1))
            assert sorted((left, right)) == sorted(BRIGHTNESS[name] for name in pair)
            wanted = "left" if (left > right) == (vote != 2) else "right"
            preferred.append((page.locator("#prompt").inner_text(), left if wanted == "left" else right))
            way.press(page.locator(f'.choices [value="{wanted}"]'))
        page.wait_for_function("document.getElementById('place')?.textContent.startsWith('6 of')")
        way.press(page.get_by_role("link", name="Stop and see the results"))
        page.locator("[data-page=votes]").wait_for()
    way.press(page.get_by_role("link", name="All votes", exact=True).last)
    rows = page.locator(".ranked tbody tr")
    rows.nth(2).wait_for()
    said = rows.evaluate_all("all => all.map((row) => [...row.children].map((one) => one.innerText.trim()))")
    assert [row[1].partition(" ")[0] for row in said] == ["tilt", "nft", "grpo"]
    assert [row[2] for row in said] == ["75\u00a0%", "50\u00a0%", "25\u00a0%"]
    assert [[int(cell) for cell in row[-3:]] for row in said] == [[4, 1, 0], [5, 5, 0], [1, 4, 0]]
    error = np.sqrt(5 / 9 * (1 / 4.5 + 1 / 1.5))  # of (2 d + d') / 3, for the differences d and d' of two neighbours
    ends = [100 / (1 + np.exp(-(np.log(3) + sign * 1.96 * error))) for sign in (-1, 1)]
    assert said[0][3] == "{:.0f}–{:.0f}\u00a0%".format(*ends) and {row[0] for row in said} == {"1–3"}
    with page.expect_download() as download:
        way.press(page.get_by_role("link", name="preferences.jsonl"))
    lines = [json.loads(line) for line in download.value.path().read_text(encoding="utf-8").splitlines()]
    of_run = {run.name: run for run in runs}
    shown = []
    for line in lines:
        chosen, rejected = (next(n for n, run in of_run.items() if run in Path(line[k]).parents) for k in SIDES)
        assert chosen != rejected and Path(line["chosen"]).name == Path(line["rejected"]).name
        shown.append((line["prompt"], BRIGHTNESS[chosen]))
    assert sorted(shown) == sorted(preferred)


SIDES = ("chosen", "rejected")
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
