"""The tree page in a real browser: walking it by keys, its panel, its switches, phones and the dark."""

from __future__ import annotations

import pytest

from tests.gallery import made_trees

pytestmark = [pytest.mark.browser, pytest.mark.long]

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


def test_on_a_phone_every_node_can_be_called_by_its_name_and_the_panel_is_a_sheet_below(page, served, run):
    """At the first size; the finished pictures are in sight with all that stands beside them."""
    made_trees.write(run, made_trees.chains(iteration=23))
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
    page.goto(f"{base}/tree?tree=000023-3")
    heads = page.locator(".head:visible b")
    edges = [(box["x"], box["x"] + box["width"]) for box in (one.bounding_box() for one in heads.all())]
    assert len(edges) == 5 and all(left[1] < right[0] for left, right in zip(edges, edges[1:], strict=False))
    page.locator("#node-0").click()
    sheet = page.locator("#panel").bounding_box()
    node = page.locator("#node-0 .shot").first.bounding_box()
    assert sheet["x"] == 0 and sheet["width"] == 390 and abs(sheet["y"] + sheet["height"] - 844) < 1
    assert node["y"] >= 0 and node["y"] + node["height"] <= sheet["y"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_without_scripts_everything_can_be_read(context_of, served, run):
    page = context_of(java_script_enabled=False, viewport={"width": 1280, "height": 800}).new_page()
    page.goto(f"{served(run)}/tree?tree=000020-3")
    assert page.locator(".node:visible").count() == 28 and page.locator("#tools").is_hidden()
    assert "Steps pushed up most" in page.locator("#story").inner_text()
    page.locator("#all-steps summary").click()
    assert page.locator("#all-steps tbody tr:visible").count() == 24
    assert page.locator("#node-8").get_attribute("title").startswith("Node 2a, step 1 of 4, noise level 1.00 → 0.75")
