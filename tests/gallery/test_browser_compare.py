"""What the browser does with rows of samples: keys, zoom, forms, films, a phone, a page from disk."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from urllib.parse import urlencode

import pytest
import torch

from diffrl.gallery.query import Query
from diffrl.gallery.site import Site
from diffrl.gallery.sources import find_sources
from diffrl.gallery.static_links import StaticLinks
from diffrl.tracking.store import SampleStore
from reward_models.media import to_pil
from tests.gallery.made import PROMPTS, eval_sample, flat, make_run
from tests.patience import until

pytestmark = [pytest.mark.browser, pytest.mark.long]

CURRENT = "[...document.querySelectorAll('.item')].indexOf(document.activeElement)"
FITS = "document.documentElement.scrollWidth"


def prompts(page):
    return [item.inner_text() for item in page.locator(".item:visible > .prompt").all()]


def zoom(page):
    """Scale of every enlarged picture."""
    script = "e => e.map(one => new DOMMatrix(getComputedStyle(one).transform).a)"
    return page.locator(".pane .media").evaluate_all(script)


def shift(page):
    """How far every enlarged picture was moved, in pixels."""
    script = "e => e.map(one => new DOMMatrix(getComputedStyle(one).transform)).map(m => [m.e, m.f])"
    return page.locator(".pane .media").evaluate_all(script)


def settles(read, expected):
    """What the browser shows of the mouse's work comes to this; at once, or where it is slow a little later."""
    until(lambda: read() == expected)


def test_keys_and_lightbox(page, served, made):
    page.goto(f"{served(made)}/compare")
    for key, place in (("j", 0), ("j", 1), ("ArrowDown", 2), ("k", 1), ("ArrowLeft", 0), ("k", 0)):
        page.keyboard.press(key)
        assert page.evaluate(CURRENT) == place, key
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    dialog = page.locator("#lightbox")
    assert dialog.is_visible() and page.locator(".pane").count() == 2
    first = page.locator(".item").nth(1)
    assert page.locator(".lightbox .prompt").inner_text() == PROMPTS[0]
    assert page.locator(".lightbox-table table").text_content() == first.locator(".all table").text_content()
    page.locator(".pane img.crisp").nth(1).wait_for()  # small pictures are drawn crisp
    page.locator(".lightbox-walk").wait_for()  # its row makes the panes lower
    page.keyboard.press("+")
    page.keyboard.press("+")
    assert zoom(page) == pytest.approx([2.25, 2.25])
    page.keyboard.press("-")
    assert zoom(page) == pytest.approx([1.5, 1.5])
    box = page.locator(".pane").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 40, y - 30)
    page.mouse.up()
    settles(lambda: shift(page), [pytest.approx([40, -30])] * 2)  # both columns together
    page.mouse.move(x - 50, y + 20)
    page.mouse.wheel(0, -300)
    grown = math.e  # by exp(300 / 300), and what is under the pointer stays there
    settles(lambda: zoom(page), pytest.approx([1.5 * grown] * 2))
    assert shift(page) == [pytest.approx([-50 + 90 * grown, 20 - 50 * grown], abs=2)] * 2  # the mouse has whole pixels
    page.mouse.dblclick(x, y)
    settles(lambda: zoom(page), [1, 1])


def test_the_form_filters_sorts_and_changes_columns(page, served, made):
    page.goto(f"{served(made)}/compare")
    page.keyboard.press("/")
    page.keyboard.type("TRIANGLES j")
    assert page.locator("[name=prompt]").input_value() == "TRIANGLES j"  # keys are letters there
    page.locator("[name=prompt]").fill("triangles")
    page.keyboard.press("Enter")
    page.wait_for_url("**prompt=triangles**")
    assert prompts(page) == [PROMPTS[1]] * 2
    with page.expect_navigation():
        page.locator("[data-reset]").click()
    for name, place, value in (("reward", 0, "shapes"), ("sort", 0, "loss"), ("columns", 2, "made@eval-2")):
        with page.expect_navigation():  # what was chosen is asked for at once
            page.locator(f"[name={name}]").nth(place).select_option(value)
        settles(lambda: page.evaluate("document.activeElement.name"), name)  # noqa: B023 - settled before it changes
    assert page.locator(".item").first.locator(".cell").count() == 3
    changes = [float(chip.replace("−", "-").replace("±", "")) for chip in page.locator(".cell .chip").all_inner_texts()]
    assert len(changes) == 6 and changes == sorted(changes)
    page.locator("[name=columns]").nth(2).select_option("")
    page.wait_for_url(lambda address: "columns=made%40eval-2" not in address)


def numbered(n):
    return f"{'red' if n % 3 else 'blue'} {n:02d}"


def enlarged(page):
    """What is enlarged: its place among all, and its prompt."""
    return [page.locator(f".lightbox {part}").inner_text() for part in ("[data-place]", ".prompt")]


def arrives(page, place):
    """Another page comes, with this one of its rows enlarged."""
    from playwright.sync_api import expect

    expect(page.locator(".lightbox[open] [data-place]")).to_have_text(f"{place} of 31")
    page.wait_for_load_state()
    assert enlarged(page)[1] == numbered(place - 1)


def walks_over_the_end_of_a_page(page):
    """From the last of the first page to the first of the second and back, and to the very end."""
    page.locator(".item:visible .open").last.click()
    assert enlarged(page) == ["24 of 31", numbered(23)]
    page.keyboard.press("ArrowRight")
    arrives(page, 25)
    assert prompts(page) == [numbered(n) for n in range(24, 31)]
    settles(lambda: page.evaluate("location.hash"), "#row-24")  # its own address, not how it was come to
    page.locator("[data-do=previous]").click()
    arrives(page, 24)
    page.keyboard.press("Escape")
    settles(lambda: page.evaluate(CURRENT), 23)
    page.keyboard.press("Enter")
    page.locator("[data-do=next]").click()
    arrives(page, 25)
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    assert enlarged(page) == ["31 of 31", numbered(30)] and page.locator("[data-do=next]").is_disabled()


def test_the_pictures_of_a_folder_can_all_be_reached(page, served, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for n in range(31):
        to_pil(flat(n / 31)).save(folder / f"{n:02d}.png")
        (folder / f"{n:02d}.txt").write_text(numbered(n))
    page.goto(served(folder))
    assert prompts(page) == [numbered(n) for n in range(24)]
    walks_over_the_end_of_a_page(page)
    page.reload()
    arrives(page, 31)


def test_films_stand_still_until_they_are_played(page, served, tmp_path):
    run = tmp_path / "film"
    with SampleStore(run) as store:
        for iteration in (0, 2):
            frames = torch.stack([flat(0.3 * n) for n in range(3)])
            store.write([eval_sample(iteration, n, 0, f"p{n}", 0.5, frames) for n in range(2)])
    base = served(run)

    def shown():
        script = "e => e.map(one => new URL(one.currentSrc).searchParams.get('still'))"
        page.locator("img.moving").evaluate_all("e => Promise.all(e.map(one => one.decode()))")
        return set(page.locator("img.moving").evaluate_all(script))

    for address in ("/", "/compare", "/compare?columns=film@eval-2"):
        page.goto(base + address)
        assert shown() == {"1"}, address  # less motion was asked for
        page.get_by_role("button", name="Play").click()
        assert shown() == {None}, address
        page.keyboard.press("p")
        assert shown() == {"1"}, address
    page.emulate_media(reduced_motion="no-preference")
    page.goto(f"{base}/compare")
    assert shown() == {None} and page.locator("#play").inner_text() == "Pause"
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{base}/compare")
    page.locator(".item .open").first.click()
    until(lambda: page.locator(".lightbox-walk").is_visible())
    still = "all => all.map((one) => new URL(one.src).searchParams.get('still'))"
    for key, expected in (("d", "1"), ("p", None), ("s", None)):  # enlarged they move together
        page.keyboard.press(key)
        assert page.locator(".pane img").evaluate_all(still) == [expected] * 2, key


def test_a_phone_needs_no_sideways_scrolling(page, served, tmp_path):
    hostile = ("W" * 3000, "<script>alert(1)</script>", "ש" * 400, *PROMPTS)
    one, two = (
        make_run(tmp_path / ("a-long-name-" * 6 + "x"), prompts=hostile),
        make_run(tmp_path / "two", prompts=hostile),
    )
    base = served(one, two)
    page.set_viewport_size({"width": 390, "height": 844})
    columns = "&".join(f"columns={one.name}@eval-{i}&columns=two@eval-{i}" for i in (0, 2, 4))
    for address in (
        "/",
        "/run?run=two",
        "/compare",
        f"/compare?{columns}",
        "/compare?columns=two@eval-4",
        f"/run?run={one.name}",
    ):
        assert page.goto(base + address).status == 200 and page.evaluate(FITS) <= 390, address
    page.locator(".item .open").first.click()
    assert page.locator("#lightbox").bounding_box()["width"] <= 390 and page.evaluate(FITS) <= 390


def exported(folder, runs, **asked) -> str:
    """The address of a comparison that is opened from disk."""
    from diffrl.gallery.app import STATIC

    site = Site(find_sources(runs), StaticLinks(lambda source, file, size, still: file))
    (folder / "static").symlink_to(STATIC)
    (folder / "compare.html").write_text(str(site.answer("compare", Query(asked)).body), encoding="utf-8")
    return (folder / "compare.html").as_uri()


def test_a_page_from_disk_turns_by_itself(page, tmp_path):
    run = make_run(tmp_path / "made", prompts=tuple(map(numbered, range(31))), roots=1)
    page.goto(exported(tmp_path, [run], run=["made"]))
    names = [numbered(n) for n in range(31)]
    assert prompts(page) == names[:24]
    page.get_by_role("button", name="Next").click()
    assert prompts(page) == names[24:]
    page.locator("[name=prompt]").fill("zebra")
    assert page.locator(".empty").is_visible() and prompts(page) == []
    page.locator("[data-reset]").click()
    assert prompts(page) == names[:24]
    page.locator(".item:visible").first.focus()
    page.keyboard.press("Enter")
    assert enlarged(page) == ["1 of 31", names[0]] and page.locator("[data-do=previous]").is_disabled()
    page.keyboard.press("Escape")
    page.locator(".lightbox[open]").wait_for(state="hidden")  # until then it takes the keys
    current = "rows.shown().indexOf(document.activeElement)"
    until(lambda: page.evaluate(current) == 23 or page.keyboard.press("j"))  # a dialog that closes takes some
    page.keyboard.press("Enter")
    until(lambda: enlarged(page) == ["24 of 31", names[23]])
    page.keyboard.press("ArrowRight")
    until(lambda: enlarged(page) == ["25 of 31", names[24]])
    assert prompts(page) == names[24:]
    page.keyboard.press("ArrowLeft")
    until(lambda: enlarged(page) == ["24 of 31", names[23]])
    assert prompts(page) == names[:24]


# What is asked of both, the server and the script of the page from disk: prompt, sort, reward.
ASKED = [
    ("", "order", "r"),
    ("no prompt", "order", "r"),
    ("STRASSE", "order", "r"),
    ("οδοσ", "prompt", "r"),
    ("STRA se", "value", "r"),
    ("5 row", "order", "r"),
    ("", "gain", "low"),
    ("", "loss", "low"),
    ("row", "gain", "r"),
]
# Between two numbers of three digits, of one and of none; tiny, huge, minus nought.
HALVES = [
    0.0625,
    0.1875,
    0.3125,
    -0.0625,
    2.0005,
    0.0005,
    150.25,
    150.75,
    99.9996,
    1000.5,
    1001.5,
    12345678.5,
    -0.0,
    3e22,
]


def shown(page):
    """What rows say on a page: prompt, values, change, and how it is judged."""
    return page.locator(".item:visible").evaluate_all(
        """all => all.map((row) => [row.querySelector(".prompt").textContent,
          ...[...row.querySelectorAll(".cell .value, .cell .chip:not([hidden])")]
            .map((one) => one.textContent + one.className)])"""
    )


def told(page):
    """Its counts, without the words around them."""
    return page.locator("#summary [data-count]").all_text_contents()


def test_the_server_and_a_page_from_disk_give_the_same_answers(page, served, tmp_path):
    """Also of a reward of which less is better."""
    run = tmp_path / "made"
    prompts = ["", "Straße", "ΟΔΟΣ", "οδος", "I", "ı", "İ", "Zebra", "apple", *(f"row {n}" for n in range(5))]
    with SampleStore(run) as store:
        for n, (prompt, value) in enumerate(zip(prompts, HALVES, strict=True)):
            last = None if n == 4 else value
            store.write([eval_sample(0, n, 0, prompt, 0.125, rewards={"r": 0.125, "low": 0.125})])
            store.write([eval_sample(4, n, 0, prompt, value, rewards={"r": last, "low": last})])
    (run / "rewards.json").write_text(json.dumps({"held_out": {"low": {"higher_is_better": False}}}))
    base, disk = served(run), page.context.new_page()
    disk.goto(exported(tmp_path, [run], run=["made"]))
    kept = set()
    for prompt, sort, reward in ASKED:
        asked = {"prompt": prompt, "sort": sort, "reward": reward}
        page.goto(f"{base}/compare?{urlencode(asked)}")
        disk.locator("[data-reset]").click()
        disk.locator("[name=prompt]").fill(prompt)
        for name in ("reward", "sort"):
            disk.locator(f"[name={name}]").select_option(asked[name])
        assert shown(disk) == shown(page), asked
        assert told(disk) == told(page), asked
        kept.add(len(shown(page)))
    assert {0, 1, 2, len(prompts)} <= kept, "cases of every kind"


def test_three_columns_are_compared_from_disk_as_on_the_server(page, served, tmp_path):
    """All rows and those of one judgement; and a count of the table shows what it counts."""
    scores = {"one": (0.2, 0.5, 0.5, 0.9), "two": (0.5,) * 4, "three": (0.9, 0.1, 0.5, 1.0)}
    runs = [tmp_path / name for name in scores]
    for run in runs:
        with SampleStore(run) as store:
            store.write([eval_sample(4, n, 0, numbered(n), value) for n, value in enumerate(scores[run.name])])
    one, two, three = keys = [f"{name}@eval-4" for name in scores]
    base, disk = served(*runs), page.context.new_page()
    disk.goto(exported(tmp_path, runs, columns=keys, reward=["shapes"]))
    for of, against, show in ((two, one, ""), (three, two, "better"), (one, three, "worse"), (one, one, "same")):
        asked = [*(("columns", key) for key in keys), ("reward", "shapes"), ("of", of), ("against", against)]
        page.goto(f"{base}/compare?{urlencode([*asked, ('show', show)])}")
        for name, value in (("of", of), ("against", against), ("show", show)):
            disk.locator(f"[name={name}]").select_option(value)
        assert shown(disk) == shown(page) and told(disk) == told(page), (of, against, show)
        assert disk.locator("[name=against]").input_value() == page.locator("[name=against]").input_value()
    disk.locator("#score-table [data-show=better]").first.click()
    assert len(shown(disk)) == sum(a < b for a, b in zip(scores["one"], scores["two"], strict=True))
    assert disk.locator("[name=show]").input_value() == "better"


def test_a_page_with_some_of_the_rows_tells_the_counts_of_all(page, tmp_path, monkeypatch):
    from diffrl.gallery.pages import compare

    run = tmp_path / "made"
    with SampleStore(run) as store:
        for n in range(8):  # the first five get better, those that are not on the page get much worse
            store.write([eval_sample(i, n, 0, f"p {n}", i / 4 if n < 5 else -i) for i in (0, 4)])
    monkeypatch.setattr(compare, "EXPORTED", 5)
    page.goto(exported(tmp_path, [run], run=["made"], reward=["total"]))
    part = page.locator("#summary [data-part]")
    everything = ["8", "total", "−0.875", "5", "0", "3"]
    assert told(page) == everything and part.inner_text() == "the first 5 of them are on this exported page"
    page.locator("[name=prompt]").fill("p")
    assert told(page) == ["5", "total", "+1.000", "5", "0", "0"] and part.inner_text() == "of the 5 rows on this page"
    page.locator("[name=prompt]").fill("")
    page.locator("[name=sort]").select_option("loss")
    assert told(page) == everything and "the first 5" in part.inner_text()
    page.locator("[name=reward]").select_option("shapes")
    assert told(page)[:2] == ["5", "shapes"]


def test_marks_are_kept_and_saved(page, served, made):
    address = f"{served(made)}/compare"
    page.goto(address)
    shown = prompts(page)
    for key in ("x", "j", "j", "x", "Enter", "j", "x", "Escape"):  # the first, the second, and enlarged the third
        page.keyboard.press(key)
    page.get_by_text("3 marked", exact=True).wait_for()
    page.reload()
    page.get_by_text("3 marked", exact=True).wait_for()
    assert page.locator(".item.marked > .prompt").all_inner_texts() == shown[:3]
    with page.expect_download() as saved:
        page.locator("[data-marks=save]").click()
    head, *lines = csv.reader(Path(saved.value.path()).read_text().splitlines())
    assert head[:2] == ["row", "prompt"] and not any("/" in name for name in head)
    assert [(line[0], line[1]) for line in lines] == [(str(n + 1), shown[n]) for n in range(3)]
    values = page.locator(".item.marked .cell:first-child .value").all_inner_texts()
    reward = next(name for name in head if name.startswith(page.locator("[name=reward]").input_value()))
    assert [f"{float(line[head.index(reward)]):.3f}" for line in lines] == values
    page.locator("[data-marks=clear]").click()
    assert page.locator(".item.marked").count() == 0 and not page.locator("#marks").is_visible()
