"""A row over the whole window: by keys, in every way of showing it, through the evaluations, and again by its address.

The same on the server and in an exported site that was opened from disk.
"""

from __future__ import annotations

import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diffrl.gallery.export import export_site
from diffrl.gallery.sources import find_sources
from diffrl.tracking.store import SampleStore
from diffrl.trees.record import TREES
from tests.gallery import made_trees
from tests.gallery.made import PROMPTS, eval_sample, flat, keep_columns, make_run
from tests.patience import until

pytestmark = [pytest.mark.browser, pytest.mark.long]

ROW = 3
"""The second sample of the second prompt."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return keep_columns(make_run(tmp_path_factory.mktemp("lightbox") / "made"), "reward/mean")


@pytest.fixture(scope="module")
def site(run, tmp_path_factory):
    """The exported site; what it shows is not asked again."""
    path = tmp_path_factory.mktemp("site") / "site"
    export_site(find_sources([run]), path, {"votes": path.parent / "votes.jsonl"})
    return path


@pytest.fixture(params=["server", pytest.param("disk", marks=pytest.mark.slow)])
def compare(request, run, served):
    """The address of the comparison of the first and the last evaluation."""
    if request.param == "disk":
        return (request.getfixturevalue("site") / "compare-made.html").as_uri()
    return f"{served(run)}/compare?run=made"


def files(page) -> list[str]:
    """Evaluation and name of the pictures that are enlarged."""
    sources = page.locator(".pane .media").evaluate_all("all => all.map((one) => one.src)")
    return [
        f"{int(match[1])}/{match[2]}" for one in sources if (match := re.search(r"eval-(\d+)[/-]([\d-]+)\.webp", one))
    ]


def opened(page, address: str) -> None:
    page.goto(address)
    for _ in range(ROW + 2):
        page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    until(lambda: page.locator(".lightbox-walk").is_visible())


def asked(page) -> str:
    return page.evaluate("location.hash")


def test_it_is_opened_walked_and_left_by_keys(page, compare):
    opened(page, compare)
    box = page.locator("#lightbox").bounding_box()
    assert (box["width"], box["height"]) == (1280, 800) and page.locator("#lightbox").get_attribute(
        "aria-modal"
    ) == "true"
    assert asked(page) == f"#row-{ROW}" and files(page) == ["0/1-1", "4/1-1"]
    assert page.locator(".lightbox-said .prompt").inner_text() == PROMPTS[1]
    for _ in range(40):
        page.keyboard.press("Tab")
        inside = "document.activeElement === document.body || document.activeElement.closest('#lightbox') !== null"
        assert page.evaluate(inside), "Tab stays in it"
    page.locator("#lightbox").focus()
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible() and "difference" in page.locator("#keys").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#lightbox").is_visible() and not page.locator("#keys").is_visible()
    page.keyboard.press("ArrowRight")
    assert files(page) == ["0/2-0", "4/2-0"] and asked(page) == f"#row-{ROW + 1}"
    page.keyboard.press("Escape")
    until(lambda: asked(page) == "" and not page.locator("#lightbox").is_visible())
    assert page.evaluate("document.activeElement.id") == f"row-{ROW + 1}", "the focus is where one was reading"
    page.keyboard.press("Enter")
    page.keyboard.press("f")
    page.keyboard.press("ArrowLeft")
    page.go_back()
    until(lambda: not page.locator("#lightbox").is_visible())
    assert asked(page) == "" and "compare" in page.url
    page.go_forward()
    until(lambda: page.locator("#lightbox").is_visible())
    assert (
        asked(page) == f"#row-{ROW}&mode=flip"
        and page.locator("[data-mode=flip]").get_attribute("aria-pressed") == "true"
    )


def centre(page) -> np.ndarray:
    """The colour in the middle of the pictures that lie on one another, (3,)."""
    page.locator(".stacked img").evaluate_all("all => Promise.all(all.map((one) => one.decode()))")
    shot = Image.open(io.BytesIO(page.locator(".stacked").screenshot())).convert("RGB")
    return np.asarray(shot.getpixel((shot.width // 2, shot.height // 2)), dtype=int)


def stored(run: Path, name: str) -> np.ndarray:
    """The same of a picture in the store."""
    evaluation, _, file = name.partition("/")
    with Image.open(run / "samples" / f"eval-{int(evaluation):06d}" / f"{file}.webp") as picture:
        return np.asarray(picture.convert("RGB").getpixel((16, 20)), dtype=int)


def test_swipe_flip_and_difference_show_what_the_pixels_say(page, compare, run):
    opened(page, compare)
    before, after = stored(run, "0/1-1"), stored(run, "4/1-1")
    assert np.abs(before - after).max() > 20
    page.keyboard.press("s")
    assert files(page) == ["0/1-1", "4/1-1"] and page.locator(".pane").count() == 1
    edge = page.locator(".lightbox-edge input")
    for at, expected in ((20, after), (80, before)):
        edge.evaluate(f"e => {{ e.value = {at}; e.dispatchEvent(new Event('input')); }}")
        assert np.abs(centre(page) - expected).max() <= 2
    box = page.locator(".pane").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.25, box["y"] + box["height"] / 3)
    until(lambda: abs(float(edge.input_value()) - 25) <= 1)
    page.keyboard.press("f")
    assert np.abs(centre(page) - before).max() <= 2
    page.keyboard.press(" ")
    assert np.abs(centre(page) - after).max() <= 2
    assert "evaluation 4" in page.locator("[data-message]").text_content()
    page.locator('[data-do="blink"]').click()
    page.evaluate("""() => {
      window.turns = 0;
      const turned = new MutationObserver(() => { turns += 1; });
      turned.observe(document.querySelector(".stacked"), { attributeFilter: ["class"] });
    }""")
    until(lambda: page.evaluate("turns") >= 2)
    page.locator('[data-do="blink"]').click()
    assert page.evaluate("stage.blinking") == 0
    page.keyboard.press("d")
    for times in (1, 2, 4):
        expected = np.minimum(255, np.abs(before - after) * times)
        assert np.abs(centre(page) - expected).max() <= 2 * times, times
        page.keyboard.press("a")
    assert asked(page) == f"#row-{ROW}&mode=difference&times=8"
    page.keyboard.press("d")
    assert page.locator(".pane").count() == 2 and files(page) == ["0/1-1", "4/1-1"]


def test_the_evaluations_of_one_sample(page, compare, run):
    opened(page, compare)
    for key, evaluation in ((",", 2), (",", 0), (",", 0), (".", 2)):
        page.keyboard.press(key)
        assert files(page) == ["0/1-1", f"{evaluation}/1-1"], "the baseline stays"
    assert page.locator(".lightbox-walk output").inner_text() == "evaluation 2, 2 of 3"
    captions = page.locator(".pane figcaption").all_inner_texts()
    assert ["evaluation 0" in captions[0], "evaluation 2" in captions[1]] == [True, True]
    lines = page.locator(".lightbox-table tr").evaluate_all(
        "all => all.map((row) => [...row.cells].map((one) => one.textContent))"
    )
    assert lines[0] == ["reward", "evaluation 0", "evaluation 2", "change"]
    assert ["shapes", "0.400", "0.700", "+0.300"] in lines  # made.score_of: 0.15 an iteration
    page.keyboard.press("d")
    view = f"#row-{ROW}&mode=difference&at=eval-2"
    assert asked(page) == view
    again = page.context.new_page()
    again.goto(compare + view)
    until(lambda: files(again) == ["0/1-1", "2/1-1"])
    assert again.locator("[data-mode=difference]").get_attribute("aria-pressed") == "true"
    again.keyboard.press("Escape")
    until(lambda: asked(again) == "")
    assert np.abs(centre(page) - np.abs(stored(run, "0/1-1") - stored(run, "2/1-1"))).max() <= 2
    page.keyboard.press("ArrowRight")
    until(lambda: files(page) == ["0/2-0", "2/2-0"])  # all prompts at that evaluation
    page.locator(".lightbox-walk input").evaluate("e => { e.value = 2; e.dispatchEvent(new Event('input')); }")
    assert files(page) == ["0/2-0", "4/2-0"] and "at=" not in asked(page)
    page.keyboard.press("e")
    until(lambda: page.locator(".lightbox-walk output").inner_text() == "evaluation 0, 1 of 3")
    until(lambda: page.locator(".lightbox-walk output").inner_text() == "evaluation 4, 3 of 3")


def test_points_open_their_pair_and_arrows_go_from_point_to_point(page, compare):
    page.goto(compare)
    page.locator("[name=reward]").select_option("shapes")
    if not compare.startswith("file"):
        page.wait_for_url("**reward=shapes**")
    points = page.locator("[data-scatter=shapes] a[href]")
    assert points.count() == 4 and page.locator('[data-scatter=shapes] a[tabindex="0"]').count() == 1
    assert [one.partition(" samples")[0] for one in points.evaluate_all("all => all.map((one) => one.textContent)")][
        :2
    ] == ["2", "2"]
    points.first.focus()
    seen = set()
    for key in ["ArrowUp"] * 4 + ["ArrowLeft"] * 4 + ["ArrowDown"] * 4 + ["ArrowRight"] * 4:
        page.keyboard.press(key)
        seen.add(page.evaluate("document.activeElement.textContent"))
    assert seen == set(points.evaluate_all("all => all.map((one) => one.textContent)"))
    single = page.locator("[data-scatter=shapes] a").filter(has_not_text=" samples").first
    words = single.text_content()
    single.focus()
    page.keyboard.press("Enter")
    until(lambda: page.locator("#lightbox").is_visible())
    assert asked(page) == "#row-4" and page.locator(".lightbox-said .prompt").inner_text() in words
    page.keyboard.press("Escape")
    until(lambda: asked(page) == "")
    points.first.focus()
    page.keyboard.press("Enter")
    until(lambda: page.locator(".item:visible").count() == 2)
    assert page.locator("#summary [data-count=rows]").inner_text() == "2"
    page.locator("[data-reset]").click()
    until(lambda: page.locator(".item:visible").count() == 6)


def test_one_column_is_compared_with_its_first_evaluation(page, served, run):
    base = served(run)
    page.goto(f"{base}/compare?columns=made@eval-4")
    page.locator(".item .open").nth(ROW).click()
    until(lambda: page.locator("[data-mode=swipe]").is_enabled())
    assert files(page) == ["4/1-1"]
    page.keyboard.press("s")
    assert files(page) == ["0/1-1", "4/1-1"]
    page.goto(f"{base}/compare?run=made#row-4000&mode=flip")
    assert page.get_by_text("names a sample that is not on this page").is_visible()
    assert asked(page) == "" and not page.locator("#lightbox").is_visible()


def test_pictures_of_a_tree(page, served, run):
    made_trees.write(run, made_trees.forest())
    base = served(run)
    page.goto(f"{base}/tree?run=made&tree=000020-3")
    page.locator("#story .versus .open").first.click()
    assert page.locator(".pane").count() == 2 and page.locator(".lightbox-said .prompt").inner_text()
    page.keyboard.press("d")
    assert page.locator('.pane[data-shown="difference"]').count() == 1
    page.keyboard.press("Escape")
    until(lambda: asked(page) == "")
    page.locator("#story .versus .ref").first.click()
    page.locator("#panel .shots .open").first.click()
    first = asked(page)
    assert first.startswith("#row-node-") and page.locator(".lightbox-table").inner_text()
    page.keyboard.press("ArrowRight")
    assert asked(page).startswith("#row-node-") and asked(page) != first
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    until(lambda: page.locator("#lightbox").is_visible())
    assert asked(page) == address[address.index("#") :] and (run / TREES).is_dir()


def test_votes_and_a_ballot_that_stays_blind(page, served, run):
    base = served(run)
    page.goto(f"{base}/vote?a=made@eval-0&b=made@eval-4")
    page.keyboard.press("z")
    assert page.locator(".pane").count() == 2 and "evaluation" not in page.locator("#lightbox").inner_text()
    page.keyboard.press("ArrowLeft")  # no vote
    page.keyboard.press("d")
    page.keyboard.press("Escape")
    until(lambda: not page.locator("#lightbox").is_visible())
    assert page.locator("#place").inner_text().startswith("1 of")
    for place, key in itertools.islice(enumerate(itertools.cycle(("ArrowLeft", "e"))), 2):
        page.keyboard.press(key)
        page.get_by_text(f"{place + 2} of").first.wait_for()
    page.goto(f"{base}/votes")
    page.locator(".given .open").first.click()
    assert page.locator(".pane figcaption").all_inner_texts()[0].startswith("A: ")
    assert asked(page) == "#row-1-2" and "shapes" in page.locator(".lightbox-table").inner_text()
    page.keyboard.press("ArrowRight")
    assert asked(page) == "#row-1-1"


def test_a_finger_goes_on_and_back(context_of, served, run):
    context = context_of(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, bypass_csp=True)
    page = context.new_page()
    page.goto(f"{served(run)}/compare?run=made#row-2")
    until(lambda: page.locator("#lightbox").is_visible())
    client = context.new_cdp_session(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390

    def swipe(start, end):
        for kind, x in (("touchStart", start), ("touchMove", (start + end) / 2), ("touchMove", end)):
            client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": 500}]})
        client.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    swipe(300, 100)
    until(lambda: asked(page) == "#row-3")
    swipe(100, 300)
    until(lambda: asked(page) == "#row-2")


def test_of_three_columns_two_are_chosen_and_their_numbers_stand_beside(page, served, tmp_path):
    """At first the best and the next; whoever is pressed stands against the one that was compared before."""
    scores = {"one": 0.2, "two": 0.9, "three": 0.5}
    for name, value in scores.items():
        with SampleStore(tmp_path / name) as store:
            for n in range(3):
                store.write([eval_sample(4, n, 0, f"p {n}", value + n / 100, flat(value))])
    keys = "&".join(f"columns={name}@eval-4" for name in scores)
    page.goto(f"{served(*(tmp_path / name for name in scores))}/compare?{keys}&reward=total")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    pressed = "all => all.map((one) => one.getAttribute('aria-pressed'))"
    buttons = page.locator("[data-pick]")
    assert buttons.evaluate_all(pressed) == ["false", "true", "true"]
    assert page.locator(".pane a[download]").count() == 3
    line = page.locator(".lightbox-table tr[data-reward=total]")
    assert line.locator("td:visible").all_inner_texts() == ["0.200", "0.900", "0.500", "+0.300"]
    buttons.nth(0).click()
    assert buttons.evaluate_all(pressed) == ["true", "true", "false"]
    assert line.locator("td:visible").all_inner_texts() == ["0.200", "0.900", "−0.700"]
    assert "loss" in line.locator("td").last.get_attribute("class")
    page.keyboard.press("f")
    ends = page.locator(".stacked .ends > span")
    assert [text.split(" ")[0] for text in ends.all_inner_texts()] == ["two", "one"]
    page.keyboard.press("ArrowRight")
    until(lambda: page.locator(".lightbox .prompt").inner_text() == "p 1")
    assert [text.split(" ")[0] for text in ends.all_inner_texts()] == ["two", "one"], "as long as it is open"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("[data-do=copy]").click()
    until(lambda: page.evaluate("navigator.clipboard.readText()") == page.url and "mode=flip" in page.url)
