"""The drawing of every sample before and after: read off its own axes, and its links followed."""

from __future__ import annotations

import html
import json
import math
import random
import re
from collections import Counter
from itertools import pairwise
from urllib.parse import urlencode

import pytest

from diffrl.gallery.compare import Row
from diffrl.gallery.query import Query
from diffrl.gallery.scatter import LARGEST, LEAST, MOST, SIZE, axis, scatter
from diffrl.gallery.site import Site
from diffrl.gallery.sources import find_sources
from diffrl.gallery.static_links import StaticLinks
from diffrl.tracking.store import SampleStore
from tests.gallery.made import eval_sample, flat
from tests.gallery.test_compare import prompts_of, stored, values_of

BEFORE = (0.25, 0.25, 0.25, 0.25, 0.7, 0.1, 0.55, 0.9, None)
AFTER = (0.5, 0.5, 0.5, 0.5, 0.3, 0.1, 0.85, None, 0.4)
PICTURED = 5


@pytest.fixture
def tied(tmp_path):
    """A run of nine prompts: four are tied, two have a score before or after only, the last four have no picture."""
    run = tmp_path / "tied"
    with SampleStore(run) as store:
        for iteration, scores in ((0, BEFORE), (4, AFTER)):
            store.write(
                [
                    eval_sample(iteration, n, 0, f"prompt {n}", score, flat(n / 9) if n < PICTURED else None)
                    for n, score in enumerate(scores)
                ]
            )
    return run


def drawing(text: str, reward: str = "shapes") -> str:
    return re.search(rf'<figure class="scatter" data-scatter="{reward}".*?</figure>', text, re.S)[0]


def scale(figure: str, axis: str):
    """From a place on the drawing to a score, by the first and the last number of that axis."""
    mark = {"x": r'<text x="([\d.]+)" y="315"[^>]*>', "y": r'<text x="-6" y="([\d.]+)"[^>]*>'}[axis]
    places = [(float(place), float(words)) for place, words in re.findall(mark + "([^<]+)<", figure)]
    (p0, v0), (p1, v1) = places[0], places[-1]
    return lambda place: v0 + (place - p0) * (v1 - v0) / (p1 - p0)


def points(figure: str) -> list[tuple[float, float, str, str, float]]:
    """Of each point its two scores, its classes, its link and its radius."""
    link, circle = r'<a(?: href="([^"]*)")? class="([^"]*)"[^>]*>', r'<circle cx="([^"]*)" cy="([^"]*)" r="([^"]*)"/>'
    mark = f"{link}<title>[^<]*</title>{circle}"
    x, y = scale(figure, "x"), scale(figure, "y")
    return [
        (x(float(cx)), y(float(cy)), css, html.unescape(href), float(r))
        for href, css, cx, cy, r in re.findall(mark, figure)
    ]


def test_points_lie_where_the_axes_say_that_the_scores_are(tied, client_of):
    figure = drawing(client_of(tied).get("/compare?reward=shapes").text)
    expected = Counter((a, b) for a, b in zip(BEFORE, AFTER, strict=True) if a is not None and b is not None)
    found = points(figure)
    assert len(found) == len(expected) == 4
    radii = {}
    for x, y, css, _, radius in found:
        (place,) = [one for one in expected if math.dist(one, (x, y)) < 2e-3]
        radii[place] = radius
        better = (place[1] > place[0]) - (place[1] < place[0])
        assert css.split()[0] == {1: "gain", 0: "same", -1: "loss"}[better]
        rows = [n for n, pair in enumerate(zip(BEFORE, AFTER, strict=True)) if pair == place]
        assert ("bare" in css) == all(n >= PICTURED for n in rows)
    ratio = (radii[0.25, 0.5] / radii[0.7, 0.3]) ** 2
    assert ratio == pytest.approx(4, rel=0.02), "the area of a point is the number of its samples"
    assert "of 7 samples: evaluation 0 across, evaluation 4 upwards" in figure


@pytest.mark.parametrize("against", ["eval-0", "eval-4"])
def test_every_point_leads_to_its_samples(tied, client_of, against):
    """A point of one sample to its row, wherever that is; one of several to exactly these."""
    client = client_of(tied)
    asked = {"columns": ["tied@eval-0", "tied@eval-4"], "reward": "shapes", "against": f"tied@{against}"}
    found = points(drawing(client.get(f"/compare?{urlencode(asked, doseq=True)}").text))
    for x, y, _, href, _ in found:
        before, after = (x, y) if against == "eval-0" else (y, x)
        expected = [
            f"prompt {n}"
            for n in range(9)
            if BEFORE[n] and AFTER[n] and math.dist((before, after), (BEFORE[n], AFTER[n])) < 2e-3
        ]
        text = client.get(href.partition("#")[0]).text
        if len(expected) > 1:
            assert prompts_of(text) == expected and "Only samples with the same two scores" in text
        else:
            row = re.search(rf'<li class="item" id="{href.partition("#")[2]}".*?</li>', text, re.S)[0]
            assert prompts_of(row) == expected
            assert values_of(row)[0] == [f"{before:.3f}", f"{after:.3f}"]


def test_a_point_beyond_the_first_page_leads_to_its_page(tmp_path, client_of):
    run = tmp_path / "long"
    with SampleStore(run) as store:
        for iteration in (0, 4):
            store.write([eval_sample(iteration, n, 0, f"prompt {n}", (n + iteration) / 100) for n in range(31)])
    client = client_of(run)
    links = [href for *_, href, _ in points(drawing(client.get("/compare?reward=shapes").text))]
    assert len(links) == 31
    for n in (0, 23, 24, 30):
        (href,) = [one for one in links if one.endswith(f"#row-{n}")]
        assert f'id="row-{n}"' in client.get(href.partition("#")[0]).text


def test_of_less_is_better_what_lies_below_is_better(tied, client_of):
    (tied / "rewards.json").write_text(json.dumps({"held_out": {"shapes": {"higher_is_better": False}}}))
    figure = drawing(client_of(tied).get("/compare?reward=shapes").text)
    css = {round(y - x, 2): css.split()[0] for x, y, css, _, _ in points(figure)}
    assert css == {0.25: "loss", -0.4: "gain", 0.0: "same", 0.3: "loss"}
    assert "Below the line evaluation 4 is better" in figure and "shapes (lower is better)" in figure


def test_an_exported_page_has_the_drawing_of_every_reward_and_links_within_itself(tied):
    links = StaticLinks(lambda source, file, size, still: f"media/{file}")
    text = Site(find_sources([tied]), links).answer("compare", Query({"run": ["tied"]})).body
    for reward in ("shapes", "shapes_strict", "total"):
        figure = drawing(text, reward)
        before, after = (
            {key[0]: value for key, value in stored(tied, i, "shapes" if reward == "total" else reward).items()}
            for i in (0, 4)
        )
        expected = {(before[p], after[p]) for p in before if before[p] is not None and after[p] is not None}
        found = points(figure)
        assert len(found) == len(expected)
        assert all(min(math.dist(one[:2], place) for place in expected) < 4e-3 for one in found)
        assert all(re.search(rf'<li class="item" id="{href[1:]}"', text) for *_, href, _ in found)
    assert re.search(r'data-like="0 1 2 3"', drawing(text))
    assert len(re.findall(r"data-scatter=", text)) == 3 and len(re.findall(r'data-scatter="\w+" hidden', text)) == 2


def test_one_column_has_no_drawing_and_a_point_that_is_none_is_a_sentence(made, client_of):
    client = client_of(made)
    assert "data-scatter" not in client.get("/compare?columns=made@eval-0").text
    answer = client.get("/compare?like=x")
    assert answer.status_code == 400 and "like must be a whole number" in answer.text
    assert "Nothing is left" in client.get("/compare?like=4000").text


def rows(pairs):
    return [Row(n, f"p{n}", (n, n), tuple(pair)) for n, pair in enumerate(pairs)]


def test_of_too_many_points_the_first_are_drawn():
    found = scatter("r", rows([(n, n + 0.5) for n in range(MOST + 7)]), set())
    assert len(found.points) == MOST and found.different == found.samples == MOST + 7
    assert {row.order for point in found.points for row in point.rows} == set(range(MOST))
    assert scatter("r", rows([(None, 1.0), (1.0, None)]), set()) is None
    drawn = scatter("r", rows([(0.0, 1.0)] * 10_000 + [(1.0, 0.0)] * 400 + [(0.5, 0.5)]), set())
    large, small, single = map(drawn.radius, drawn.points)
    assert large == LARGEST and (large / small) ** 2 == pytest.approx(25) and single == LEAST


def test_axes_hold_all_scores_between_round_numbers():
    draw = random.Random(7)
    ranges = [(0.0, 1.0), (0.0, 0.0), (3.5, 3.5), (-2.0, -2.0), (1e-9, 2e-9), (-1e6, 1e6), (1e12, 1e12 + 1e-3)]
    ranges += [tuple(sorted(draw.uniform(-1, 1) * 10 ** draw.randint(-4, 6) for _ in range(2))) for _ in range(200)]
    for lowest, highest in ranges:
        low, high, ticks = axis(lowest, highest)
        assert low < lowest <= highest < high
        assert 2 <= len(ticks) <= 7 and all(low <= tick <= high for tick in ticks), (lowest, highest, ticks)
        steps = {float(f"{b - a:.6g}") for a, b in pairwise(ticks)}
        (digit,) = {f"{step:e}"[0] for step in steps}
        assert digit in "125" and f"{next(iter(steps)):.6e}"[1:8].strip(".0") == ""


def test_both_axes_are_alike_and_the_diagonal_is_where_nothing_changed():
    found = scatter("r", rows([(0.2, 0.9), (0.4, 0.4)]), {0, 1})
    same = next(point for point in found.points if point.x == point.y)
    assert found.across(same.x) == pytest.approx(SIZE - found.down(same.y)) and same.judged == 0
