"""The panel of a split that trains, in a real browser."""

from __future__ import annotations

import pytest

from tests.gallery import made_trees

pytestmark = [pytest.mark.browser, pytest.mark.long]


def test_a_split_shows_before_aim_and_after_and_leads_to_its_pictures(strict_page, served, made):
    page = strict_page
    made_trees.write(made, made_trees.tilted())
    page.goto(f"{served(made)}/tree?tree=000020-3#node-0")
    panel = page.locator("#panel")
    assert panel.locator(".pushed figcaption").all_inner_texts() == ["before", "aim", "after"]
    panel.locator(".pushed img").nth(2).scroll_into_view_if_needed()
    sources = []
    for place in range(3):
        shot = panel.locator(".pushed img").nth(place)
        assert shot.evaluate("one => one.decode().then(() => one.naturalWidth)") == 32
        sources.append(shot.get_attribute("src"))
    assert len(set(sources)) == 3
    boxes = [panel.locator(".pushed img").nth(place).bounding_box() for place in range(3)]
    assert boxes[0]["x"] < boxes[1]["x"] < boxes[2]["x"] and len({round(box["y"]) for box in boxes}) == 1
    assert "5.0 % of that length" in panel.inner_text()
    assert panel.locator(".shots").count() == 0, "the first image of the strip is the node's own"
    panel.locator(".ends-below button").last.click()
    assert "Image 1ab" in panel.inner_text() and panel.locator(".split").count() == 0
    page.locator("#node-1").click()
    assert panel.locator(".pushed img").count() == 3 and panel.locator(".shots img").count() == 1
    page.locator("#node-4").click()
    assert "does not train" in panel.inner_text() and panel.locator(".pushed").count() == 0
    framed = "one => getComputedStyle(one).outlineStyle"
    assert page.locator("#node-4 .shot").evaluate(framed) == "dotted"
    assert page.locator("#node-1 .shot").evaluate(framed) == "solid"


def test_the_strip_fits_a_phone_and_stands_still(page, served, made):
    page.set_viewport_size({"width": 390, "height": 800})
    made_trees.write(made, made_trees.tilted(), frames=3)
    page.goto(f"{served(made)}/tree?tree=000020-3#node-0")
    panel = page.locator("#panel")
    assert panel.evaluate("one => one.scrollWidth <= one.clientWidth")
    assert panel.locator(".pushed picture").count() == 3, "what moves stands still for those who asked for that"
    page.wait_for_function("[...document.querySelectorAll('#panel .pushed img')].every((one) => one.naturalWidth > 0)")
