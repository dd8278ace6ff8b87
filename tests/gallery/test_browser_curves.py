"""The curves in a real browser: drawn, read, zoomed, switched, downloaded, redrawn while the run goes on."""

from __future__ import annotations

import csv
import io
import json
import shutil

import pytest

from diffrl.gallery import curves
from diffrl.gallery.app import STATIC
from diffrl.gallery.query import Query
from diffrl.gallery.site import Site
from diffrl.gallery.sources import find_sources
from diffrl.gallery.static_links import StaticLinks
from tests.gallery.made import make_run, metrics_rows
from tests.patience import until

pytestmark = [pytest.mark.browser, pytest.mark.long]
LIGHT, DARK = (0x1B, 0x7F, 0x6B), (0x4F, 0xC3, 0xA5)
"""The first line's colour in the two themes, as the style sheet has it."""

COUNT = """([panel, rgb]) => {
  const canvas = document.querySelector(`[data-panel="${panel}"] canvas`);
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let found = 0;
  for (let i = 0; i < pixels.length; i += 4) {
    if (pixels[i + 3] > 200 && rgb.every((value, c) => Math.abs(pixels[i + c] - value) < 12)) found++;
  }
  return found;
}"""


def inked(page, panel, colour=LIGHT):
    """Pixels of a colour in a panel's drawing."""
    painted(page)
    return page.evaluate(COUNT, [panel, list(colour)])


def legend(page, panel):
    """Names and values that a panel's legend shows."""
    rows = page.locator(f'[data-panel="{panel}"] .u-series:not(.band)')
    return dict(rows.evaluate_all("all => all.map((row) => [...row.children].map((cell) => cell.textContent.trim()))"))


def hover(page, panel, share):
    """The mouse at a share of the width of a panel's drawing."""
    page.locator(f'[data-panel="{panel}"]').scroll_into_view_if_needed()
    box = page.locator(f'[data-panel="{panel}"] .u-over').bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 5)
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    painted(page)
    return box


def painted(page):
    """Until what was asked of the browser so far is on the screen."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_the_charts_of_a_run(made, served, page):
    page.goto(f"{served(made)}/curves?run=made")
    assert page.locator(".chart canvas").count() == page.locator(".panel:visible").count() > 8
    assert inked(page, "held_out/shapes") > 150 and inked(page, "ratio") > 100
    assert legend(page, "held_out/shapes") == {"iteration": "last", "shapes": "0.7"}, "of nothing pointed at"

    hover(page, "held_out/shapes", 0.5)  # iteration 2 of 4
    shown = {name.strip(": "): value for name, value in legend(page, "held_out/shapes").items()}
    assert shown == {"iteration": "2", "shapes": "0.6"}
    assert list(legend(page, "fidelity").values()) == ["2", "0.64"]  # the cursor is the same in every panel

    page.locator("#smooth").select_option("5")
    assert "smooth=5" in page.url
    hover(page, "held_out/shapes", 0.5)
    assert list(legend(page, "fidelity").values()) == ["2", "0.65"], "the mean of all four points around it"
    assert list(legend(page, "held_out/shapes").values())[1] == "0.6", "an evaluation is a mean already"
    page.locator("#smooth").select_option("1")
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("l")
    assert "log=1" in page.url and "smooth" not in page.url and inked(page, "ratio") > 100
    linear = page.locator(".panel[data-linear]:visible").evaluate_all("all => all.map((one) => one.dataset.panel)")
    assert linear == ["loss"], "it alone has values of 0 or below"
    page.reload()
    assert page.locator("#log").is_checked()
    page.locator("#log").uncheck()
    assert page.locator(".panel[data-linear]").count() == 0

    page.keyboard.press("Escape")
    page.locator("#axis").select_option("evaluations")
    assert "x=evaluations" in page.url
    hover(page, "ratio", 0.99)
    assert [text.strip(": ") for text in next(iter(legend(page, "ratio").items()))] == ["network evaluations", "4,000"]

    before = inked(page, "ratio")
    page.locator('[data-panel="ratio"] .u-series th').nth(1).press("Enter")
    assert inked(page, "ratio") == 0
    assert page.locator('[data-panel="ratio"] .u-series th').nth(1).get_attribute("aria-pressed") == "false"
    page.locator('[data-panel="ratio"] .u-series th').nth(1).press(" ")
    assert inked(page, "ratio") == before

    box = hover(page, "diversity", 0.1)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 40)
    page.mouse.up()
    page.locator("#reset").wait_for()
    hover(page, "ratio", 0.97)  # the zoom is the same in every panel: its right edge is no longer the end
    assert list(legend(page, "ratio").values())[0] != "4,000"
    page.mouse.dblclick(box["x"] + 50, box["y"] + 40)
    page.locator("#reset").wait_for(state="hidden")

    page.locator('[data-panel="ratio"] .chart').press("ArrowRight")
    page.locator('[data-panel="ratio"] .chart').press("ArrowRight")
    shown = list(legend(page, "ratio").values())
    assert shown in (["1,000", "1.001"], ["2,000", "1.002"], ["4,000", "1.004"])
    said = page.locator("#said").text_content()
    assert said.startswith(f"network evaluations {shown[0]}, ") and said.endswith(f" {shown[1]}"), said

    # What is inside of an image is hidden from who hears the page: only the drawing may be one.
    assert page.locator("[role=img] [role=button], [role=img] a, [role=img] table").count() == 0
    assert page.locator("#panels .chart[role=group] .u-series th[role=button]:visible").count() > 8
    names = page.locator("#panels canvas[role=img]:visible").evaluate_all("all => all.map((one) => one.ariaLabel)")
    assert len(names) == page.locator("#panels canvas:visible").count() and all(names)

    assert inked(page, "held_out/shapes", DARK) == 0
    page.locator("#theme").click()
    assert inked(page, "held_out/shapes", DARK) > 150 and inked(page, "held_out/shapes", LIGHT) < 20

    with page.expect_download() as download:
        page.locator('[data-panel="held_out/shapes"] .files a', has_text="CSV").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text(), newline="")))
    assert [row["held_out/shapes"] for row in rows] == ["0.5", "0.6", "0.7"]
    assert download.value.suggested_filename == "curves-made-held_out-shapes.csv"


def test_many_runs_on_a_phone_and_a_run_that_goes_on(tmp_path, served, page):
    from playwright.sync_api import expect

    made = make_run(tmp_path / "runs" / "made", iterations=4)
    make_run(tmp_path / "runs" / "other", iterations=8)
    long = [{**row, "update/odd": row["iteration"]} for row in metrics_rows(12)]  # odd: folded away
    (made / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in long[:5]))
    address = served(tmp_path / "runs")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}/curves")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert len(legend(page, "held_out/shapes")) == 3
    assert page.locator("#choice input[name=run]:checked").count() == 2
    page.locator("#choice label.run", has_text="other").locator("input").uncheck()
    page.wait_for_url("**run=made**")
    assert len(legend(page, "held_out/shapes")) == 2

    for summary in page.locator(".further > summary").all():  # on a phone rewards alone are unfolded at first
        summary.click()
    page.locator('[data-panel="ratio"] .u-series th').nth(1).click()
    page.locator('[data-panel="ratio"] summary').click()
    page.locator(".fold:not(.further) > summary").first.click()
    (made / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in long))
    page.evaluate('document.dispatchEvent(new CustomEvent("run-changed", {detail: {run: "made"}}))')
    expect(page.locator('[data-panel="ratio"] td').last).to_have_text("12")
    assert inked(page, "ratio") == 0 and inked(page, "clipped") > 50
    assert page.locator('[data-panel="ratio"] details').get_attribute("open") is not None
    assert page.locator(".fold:not(.further)").first.get_attribute("open") is not None
    until(lambda: inked(page, "update/odd") > 50)  # it is drawn once its fold is open
    expected = long[-1]["held_out/shapes"]
    cells = page.locator('[data-panel="held_out/shapes"] details tbody tr').first.locator("td").all_text_contents()
    assert float(cells[1]) == pytest.approx(expected)


def test_a_page_from_disk_changes_its_axis_and_its_runs(tmp_path, page):
    make_run(tmp_path / "runs" / "one", iterations=4)
    make_run(tmp_path / "runs" / "two", iterations=6)
    site = Site(find_sources([tmp_path / "runs"]), StaticLinks(lambda *picture: "media/x.webp"))
    (tmp_path / "site").mkdir()
    shutil.copytree(STATIC, tmp_path / "site" / "static")
    (tmp_path / "site" / "curves.html").write_text(str(site.answer("curves", Query()).body), encoding="utf-8")
    page.goto((tmp_path / "site" / "curves.html").as_uri())
    assert inked(page, "ratio") > 50
    page.locator("#axis").select_option("seconds")
    hover(page, "ratio", 0.99)
    assert list(legend(page, "ratio").values())[0] == "4.5"
    page.locator("#choice label.run", has_text="one").locator("input").uncheck()  # the first colour, by its name
    assert inked(page, "ratio") == 0
    assert json.loads(page.locator("#curves-data").text_content())["words"]["seconds"] == curves.AXES["seconds"][1]


def test_without_scripts_there_are_numbers(made, served, context_of):
    page = context_of(java_script_enabled=False).new_page()
    page.goto(f"{served(made)}/curves?run=made")
    panel = page.locator('[data-panel="held_out/shapes"]')
    panel.locator("summary").click()
    assert panel.locator("tbody tr").count() == 1 and panel.locator("tbody td").first.is_visible()
