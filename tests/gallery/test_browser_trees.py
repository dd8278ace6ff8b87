"""The tree page in a real browser: walking it by keys, its panel, its switches, phones and the dark."""

from __future__ import annotations

import pytest
from PIL import Image

from diffrl.trees.read import read_tree
from tests.gallery import made_trees

pytestmark = [pytest.mark.browser, pytest.mark.long]

CONTRAST = """(css) => {
  const light = (text) => {
    const parts = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const linear = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const one = document.querySelector(css);
  const pair = [light(getComputedStyle(one).color), light(behind(one))].sort((a, b) => a - b);
  return (pair[1] + 0.05) / (pair[0] + 0.05);
}"""
LOADED = "document.querySelector('#panel .shots img').naturalWidth === 32"


@pytest.fixture
def run(made):
    """A forest, a pool and an explored forest, in this order."""
    made_trees.write(made, made_trees.forest())
    made_trees.write(made, made_trees.pool(iteration=21))
    made_trees.write(made, made_trees.wide_forest(iteration=22))
    return made


def focused(page) -> str:
    """Id of the focused element."""
    return page.evaluate("document.activeElement.id")


def test_keys_walk_the_tree_and_open_its_steps(page, served, run):
    page.goto(f"{served(run)}/tree?tree=000020-3")
    page.locator("#node-0").focus()
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
        seen.append(focused(page))
    # first child 1, its first child 2, then 3 and, in the next branch, 5; its parent 4, above it 1, nothing above; root
    assert seen == [f"node-{number}" for number in (1, 2, 3, 5, 4, 1, 1, 0)]
    assert page.locator('.node[tabindex="0"]').count() == 1
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.locator("#panel").is_hidden()
    page.keyboard.press("Enter")
    text = page.locator("#panel").inner_text()
    assert focused(page) == "node-8" and page.locator("#node-8").get_attribute("aria-selected") == "true"
    for words in ("Node 2a", "noise level 0.75", "+0.375", "+1.12", "yes ◆", "+0.00047 per dimension"):
        assert words in text
    assert page.locator("#panel .strip button").all_inner_texts() == ["2", "2a"]
    page.locator("#panel .strip button").nth(1).press("Enter")
    assert page.locator("#panel .strip .here").evaluate("one => one === document.activeElement"), "the focus is kept"
    page.locator("#panel .strip button").first.press("Enter")
    assert "Starting noise 2" in page.locator("#panel").inner_text()
    assert page.locator("#panel").evaluate("one => one.contains(document.activeElement)")
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden() and focused(page) == "node-7"


def test_pointer_story_and_neighbours(page, served, run):
    base = served(run)
    page.goto(f"{base}/tree?tree=000020-3")
    page.locator("#node-27").click()
    assert "shapes: no object found" in page.locator("#panel").inner_text()
    page.wait_for_function(LOADED)
    page.locator('.hit[data-node="8"]').first.dispatch_event("click")  # the line of a step is the step
    assert "Node 2a" in page.locator("#panel").inner_text()
    page.locator('#story [data-ref="2"]').first.click()
    assert "Image 1aa" in page.locator("#panel").inner_text() and focused(page) == "node-2"
    lit = page.evaluate("[...document.querySelectorAll('.node.on')].map((one) => one.id)")
    assert lit == ["node-0", "node-1", "node-2"]
    page.keyboard.press("n")
    page.wait_for_url("**tree=000021-3")
    page.keyboard.press("p")
    page.wait_for_url("**tree=000020-3")
    page.goto(f"{base}/tree?tree=000020-3#steps-8")
    assert "Node 2a" in page.locator("#panel").inner_text()


def test_switches_hide_what_was_only_explored(page, served, run):
    page.goto(f"{served(run)}/tree?tree=000022-3")
    height = page.locator("#canvas").evaluate("one => one.offsetHeight / getComputedStyle(one).getPropertyValue('--u')")
    assert page.locator(".node:visible").count() == 112
    page.locator("#sampled-only").click()
    assert page.locator("#sampled-only").get_attribute("aria-pressed") == "true"
    assert page.locator(".node:visible").count() == 20  # 4 noises, 8 half-finished, 8 pictures
    now = page.locator("#canvas").evaluate("one => one.offsetHeight / getComputedStyle(one).getPropertyValue('--u')")
    assert now < 0.6 * height
    assert page.locator(".shot.proxy:visible").count() == 8
    page.locator("#proxies").click()
    assert page.locator(".shot.proxy:visible").count() == 0
    wide = page.locator("#node-2 .shot").first.evaluate("one => one.offsetWidth")
    page.locator("#size").evaluate("one => { one.value = 1.6; one.dispatchEvent(new Event('input')); }")
    full = page.locator("#node-0").evaluate("one => Number(getComputedStyle(one).getPropertyValue('--s'))")
    assert page.locator("#node-0 .shot").evaluate("one => one.offsetWidth") == round(full * 1.6) > wide
    page.keyboard.press("f")
    box = page.locator("#box").evaluate(
        "one => [one.scrollHeight - one.clientHeight, one.scrollWidth - one.clientWidth]"
    )
    assert box[0] <= 1 and box[1] <= 1


def test_columns_move_apart_where_there_is_room(page, served, run):
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{served(run)}/tree?tree=000020-3")
    right = "Math.max(...[...document.querySelectorAll('.words')].map((one) => one.getBoundingClientRect().right))"
    left = "document.querySelector('#node-0 .shot').getBoundingClientRect().left"
    box = page.locator("#box").bounding_box()
    assert page.evaluate(f"{right} - {left}") > 0.8 * box["width"]
    assert page.locator("#box").evaluate("one => one.scrollWidth - one.clientWidth") <= 1
    starts = page.evaluate(
        "[...document.querySelectorAll('path.line')].map((one) => { const at = one.getBoundingClientRect(); "
        "const node = document.getElementById(`node-${one.dataset.node}`).querySelector('.shot'); "
        "return Math.abs(at.right - node.getBoundingClientRect().left); })"
    )
    assert len(starts) == 24 and max(starts) < 5  # lines still end at their pictures
    page.set_viewport_size({"width": 700, "height": 800})
    page.evaluate("dispatchEvent(new Event('resize'))")  # the browser's own may still be on its way
    assert page.locator("#box").evaluate("one => one.scrollWidth - one.clientWidth") <= 1


def test_pictures_stay_on_their_places(page, served, run):
    page.goto(f"{served(run)}/tree?tree=000021-3")
    shots = page.evaluate(
        "[...document.querySelectorAll('.node .shot')].map((one) => { const at = one.getBoundingClientRect(); "
        "return [at.left, at.top, at.right, at.bottom]; })"
    )
    assert len(shots) == 64 + 18
    for place, one in enumerate(shots):
        for other in shots[place + 1 :]:
            assert not (
                one[0] < other[2] - 0.5
                and other[0] < one[2] - 0.5
                and one[1] < other[3] - 0.5
                and other[1] < one[3] - 0.5
            ), (one, other)


def test_a_new_tree_appears_and_nobody_loses_their_place(page, served, run):
    with page.expect_response(lambda answer: "/state" in answer.url):
        page.goto(f"{served(run)}/tree?tree=000022-3")
    page.locator("#node-0").click()
    page.locator("#sampled-only").click()
    page.evaluate("window.old = document.querySelector('.treefig')")
    assert page.locator("[data-go=next]").count() == 0
    assert page.locator("#size").evaluate("one => one.value === one.defaultValue"), "set, not touched"
    made_trees.write(run, made_trees.forest(iteration=23))
    for _ in range(1200):  # its question comes at once when somebody looks at the page again
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for_timeout(50)
        if page.locator("[data-go=next]").count():
            break
    assert page.locator("[data-go=next]").get_attribute("href").endswith("tree=000023-3")
    assert page.evaluate("old === document.querySelector('.treefig')") and page.locator("#panel").is_visible()
    assert page.locator(".node:visible").count() == 20 and page.locator("#live").is_hidden()
    page.locator("#sampled-only").click()
    page.locator("#node-1").press("Enter")
    assert page.locator(".node:visible").count() == 112 and page.locator("#node-1.chosen").count() == 1
    page.keyboard.press("n")
    page.wait_for_url("**tree=000023-3")


def test_what_moves_stands_still_and_only_small_pictures_are_pixels(context_of, served, run):
    """For those who asked for less motion; and thumbnails of large pictures are drawn smooth."""
    folder = run / "trees" / "000020-3"
    name = read_tree(run, 20, 3).nodes[2].picture
    frames = [Image.new("RGB", (300, 300), colour) for colour in ("red", "blue")]
    frames[0].save(folder / name, save_all=True, append_images=frames[1:], duration=100)
    address = f"{served(run)}/tree?tree=000020-3#node-2"
    for motion, still in (("reduce", True), ("no-preference", False)):
        page = context_of(viewport={"width": 1280, "height": 800}, reduced_motion=motion).new_page()
        page.goto(address)
        page.wait_for_function("document.querySelector('#panel .shots img').naturalWidth === 300")
        assert page.locator("#panel .shots img").evaluate("one => one.currentSrc.includes('still=1')") is still
        ready = "[...document.querySelectorAll('#node-2 img, #node-3 img')].every((one) => one.naturalWidth)"
        page.wait_for_function(ready)
        page.locator("#node-3 img.crisp").wait_for()
        drawn = [page.locator(f"#node-{n} img").evaluate("one => getComputedStyle(one).imageRendering") for n in (2, 3)]
        assert drawn == ["auto", "pixelated"] and page.locator("#node-2 img").evaluate("one => one.naturalWidth") == 128


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_phones_and_themes(page, served, run, theme):
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme=theme)
    base = served(run)
    for address in ("/trees", "/tree?tree=000020-3", "/tree?tree=000021-3", "/tree?tree=000022-3"):
        page.goto(base + address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, address
    page.locator("#node-0").click()
    sheet = page.locator("#panel").bounding_box()
    node = page.locator("#node-0 .shot").first.bounding_box()
    assert sheet["x"] == 0 and sheet["width"] == 390 and abs(sheet["y"] + sheet["height"] - 844) < 1
    assert node["y"] >= 0 and node["y"] + node["height"] <= sheet["y"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#panel header button").click()
    page.goto(f"{base}/tree?tree=000020-3")
    for css in (
        ".story p",
        ".story h3",
        ".ref",
        ".legend",
        ".value",
        ".reward",
        ".own",
        ".name",
        ".chip-a",
        ".head",
        ".head b",
    ):
        assert page.evaluate(CONTRAST, css) >= 4.5, css
    colours = "<p style='background: var(--shade)'><a href='#'>x</a></p><span class='chip mark'>x</span>"
    page.locator("#main").evaluate("(main, html) => main.insertAdjacentHTML('beforeend', html)", colours)
    for css in ("#main > p a", "#main > .chip.mark"):
        assert page.evaluate(CONTRAST, css) >= 4.5, css


def test_on_a_phone_every_node_can_be_called_by_its_name(page, served, run):
    """At the first size, and the finished pictures are in sight with all that stands beside them."""
    page.set_viewport_size({"width": 390, "height": 844})
    base = served(run)
    page.goto(f"{base}/tree?tree=000020-3")
    assert page.locator(".node .name:visible").count() == 28
    sizes = (
        "[...document.querySelectorAll('.node .name')].map((one) => Number.parseFloat(getComputedStyle(one).fontSize))"
    )
    assert min(page.evaluate(sizes)) >= 12
    box = page.locator("#box").bounding_box()
    for css in ("#node-2 .words", "#node-2 .shot", ".head:last-child b"):
        found = page.locator(css).first.bounding_box()
        assert box["x"] <= found["x"] and found["x"] + found["width"] <= box["x"] + box["width"], css
    gaps = page.evaluate(
        "[...document.querySelectorAll('.node .chip-a')].map((one) => { const id = one.closest('.node').dataset.node;"
        "const up = JSON.parse(document.getElementById('tree-facts').textContent)[id].parent;"
        "const above = document.querySelector(`#node-${up} .shot`).getBoundingClientRect();"
        "return one.getBoundingClientRect().left - above.right; })"
    )
    assert len(gaps) == 24 and min(gaps) >= 0, "no chip lies on the image before it"
    page.goto(f"{base}/tree?tree=000022-3")
    assert page.locator("#node-0 .name").is_visible()
    page.goto(f"{base}/tree?tree=000021-3")  # a pool: words end before the next picture begins
    overlaps = page.evaluate(
        "(() => { const at = (css) => [...document.querySelectorAll(css)].map((one) => one.getBoundingClientRect());"
        "return at('.node .words').filter((word) => at('.node .shot').some((shot) => shot.left < word.right - 1"
        "&& word.left < shot.left && shot.top < word.bottom && word.top < shot.bottom)).length; })()"
    )
    assert page.locator(".node .name:visible").count() == 18 and overlaps == 0


@pytest.mark.parametrize("wide", [390, 1024])
def test_words_above_columns_do_not_lie_on_each_other(page, served, made, wide):
    made_trees.write(made, made_trees.chains())
    page.set_viewport_size({"width": wide, "height": 844})
    page.goto(f"{served(made)}/tree?tree=000020-3")
    heads = page.locator(".head:visible b")
    edges = [(box["x"], box["x"] + box["width"]) for box in (one.bounding_box() for one in heads.all())]
    assert len(edges) == 5 and all(left[1] < right[0] for left, right in zip(edges, edges[1:], strict=False))
    assert [text.split()[-1] for text in heads.all_inner_texts()] == ["1.00", "0.80", "0.60", "0.40", "images"]


def test_without_scripts_everything_can_be_read(context_of, served, run):
    page = context_of(java_script_enabled=False, viewport={"width": 1280, "height": 800}).new_page()
    page.goto(f"{served(run)}/tree?tree=000020-3")
    assert page.locator(".node:visible").count() == 28 and page.locator("#tools").is_hidden()
    assert "Steps pushed up most" in page.locator("#story").inner_text()
    page.locator("#all-steps summary").click()
    assert page.locator("#all-steps tbody tr:visible").count() == 24
    assert page.locator("#node-8").get_attribute("title").startswith("Node 2a, step 1 of 4, noise level 1.00 → 0.75")


def test_the_exported_tree_opens_from_disk(page, made, tmp_path):
    from diffrl.gallery.export import export_site
    from diffrl.gallery.sources import find_sources

    bare = tmp_path / "bare"  # a run that has trees and nothing else yet: its other pages are written in a moment
    bare.mkdir()
    for name in ("config.yaml", "environment.json"):
        (bare / name).write_text((made / name).read_text(encoding="utf-8"), encoding="utf-8")
    made_trees.write(bare, made_trees.forest())
    made_trees.write(bare, made_trees.pool(iteration=21))
    export_site(find_sources([bare]), tmp_path / "site", {"votes": tmp_path / "votes.jsonl"})
    page.goto((tmp_path / "site" / "index.html").as_uri())
    page.get_by_role("link", name="Trees", exact=True).click()
    page.get_by_role("link", name="Iteration 20, group 3").click()
    page.locator("#node-8").click()
    assert "Node 2a" in page.locator("#panel").inner_text()
    page.wait_for_function(LOADED)
    page.keyboard.press("n")
    page.wait_for_function("document.querySelectorAll('.node').length === 64")
    page.locator("#sampled-only").click()
    assert page.locator(".node:visible").count() == 18
