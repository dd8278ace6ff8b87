"""The embedded world: splits, grammar and rendering."""

import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest

from diffrl.data.shapes import LEVELS, RADIUS, prompts, render, sample_scene, scene_of
from diffrl.data.worlds import SPLITS
from reward_models.common.errors import RewardError
from reward_models.images.shapes import (
    BACKGROUND,
    COLORS,
    PALETTE,
    RELATIONS,
    SceneSpec,
    Thing,
    format_prompt,
    parse_prompt,
)


def meetings(text):
    """What meets in a prompt, read from its words alone: pairs of things, and numbers with what is counted."""
    for word in ("left of", "right of", "above", "below"):
        text = text.replace(word, "and")
    kinds, counted = [], set()
    for phrase in text.replace("and and", "and").split(" and "):
        number, *_, color, shape = phrase.split()
        kinds.append(f"{color} {shape.removesuffix('s')}")
        counted |= {(number, kinds[-1])} if shape.endswith("s") else set()
    return {frozenset(pair) for pair in combinations(kinds, 2)} | counted


def test_every_held_out_prompt_holds_what_no_other_split_holds():
    texts = {split: [p.text for p in prompts(split)] for split in SPLITS}
    met = {split: set().union(*map(meetings, texts[split])) for split in SPLITS}
    assert all(len(set(texts[split])) == len(texts[split]) for split in SPLITS)
    for split, other in (("tune", "report"), ("report", "tune")):
        elsewhere = met["train"] | met[other]
        assert all(meetings(text) - elsewhere for text in texts[split])
        assert not (met[split] - met["train"]) & met[other]


def test_held_out_splits_are_alike_and_ask_for_everything():
    sizes = [len(prompts(split)) for split in SPLITS]
    assert sizes == [4138, 583, 575]
    for split in SPLITS:
        scenes = [scene_of(p) for p in prompts(split)]
        assert {r for s in scenes for r in s.relations} == set(RELATIONS)
        assert {t.color for s in scenes for t in s.things} == set(COLORS)
        assert {t.size for s in scenes for t in s.things} == {"", "small", "large"}
        assert {len(s.things) for s in scenes} >= {2, 3, 4}
        assert {p.metadata["kind"] for p in prompts(split)} == set(LEVELS)
        pairs = [s for p, s in zip(prompts(split), scenes, strict=True) if p.metadata["kind"] == "relation"]
        assert len(pairs) == 8 * len({frozenset(s.things) for s in pairs})  # each in every relation and order


def test_prompts_are_the_same_in_every_process():
    code = "from diffrl.data.shapes import prompts; print([p.text for p in prompts('report')])"
    seen = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    )
    assert seen.stdout.strip() == str([p.text for p in prompts("report")])


@pytest.mark.parametrize(
    ("text", "scene"),
    [
        ("two large red squares", SceneSpec((Thing("red", "square", "large"),) * 2)),
        ("a red square and two blue circles", SceneSpec((Thing("red", "square"), *[Thing("blue", "circle")] * 2))),
        (
            "a small red square above a black circle",
            SceneSpec((Thing("red", "square", "small"), Thing("black", "circle")), ("above",)),
        ),
        (
            "a red square left of a blue circle and below a black triangle",
            SceneSpec(
                (Thing("red", "square"), Thing("blue", "circle"), Thing("black", "triangle")), ("left of", "below")
            ),
        ),
    ],
)
def test_a_prompt_asks_for_what_it_says(text, scene):
    assert parse_prompt(text) == scene and format_prompt(scene) == text


@pytest.mark.parametrize(
    "text",
    ["", "a cat", "two red circle", "a red circle left of a red square", "five red circles",
     "a red circle left of two blue squares", "a red circle near a blue square", "a red circle left of",
     "left of a red circle", "a red circle and", "a tiny red circle", "a red circle and a red square",
     "a red circle left of a blue square and a black circle", "a red circle left of above a blue square"],
)  # fmt: skip
def test_prompts_outside_the_grammar_are_refused(text):
    with pytest.raises(RewardError, match="colours: red"):
        parse_prompt(text)


def test_renders_show_the_scene():
    """Independent of the checker: exact colours at the centres, inked area, background elsewhere, nothing touching."""
    rng = np.random.default_rng(0)
    size = 64
    for prompt in prompts("train")[:70]:
        scene = scene_of(prompt)
        state = rng.bit_generator.state
        placed = sample_scene(scene, rng)
        rng.bit_generator.state = state
        picture = render(scene, rng, size).astype(int)
        for item in placed:
            centre = picture[int(item.y * size), int(item.x * size)]
            assert tuple(centre) == PALETTE[item.thing.color]
            assert RADIUS[item.thing.size][0] <= item.radius <= RADIUS[item.thing.size][1]
        for color in {item.thing.color for item in placed}:
            inked = (picture == PALETTE[color]).all(-1).sum()
            area = sum(np.pi * (item.radius * size) ** 2 for item in placed if item.thing.color == color)
            assert 0.65 * area < inked < area  # the anti-aliased rim is not counted
        border = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
        assert (border == BACKGROUND).all()
        for a, b in combinations(placed, 2):
            assert np.hypot(a.x - b.x, a.y - b.y) > 1.7 * (a.radius + b.radius) / 2
        for relation, other in zip(scene.relations, placed[1:], strict=False):
            (ax, ay), (bx, by) = ((item.x, item.y) for item in (placed[0], other))
            assert {"left of": ax < bx, "right of": ax > bx, "above": ay < by, "below": ay > by}[relation]
            assert relation in RELATIONS
