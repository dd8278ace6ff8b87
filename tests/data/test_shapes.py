"""The embedded world: splits, grammar and rendering."""

from itertools import combinations

import numpy as np
import pytest

from diffrl.data.shapes import prompts, render, sample_scene, scene_of
from diffrl.data.worlds import SPLITS
from diffrl.errors import ConfigError
from reward_models.errors import RewardError
from reward_models.images.shapes import BACKGROUND, PALETTE, RELATIONS, format_prompt, parse_prompt


def test_the_splits_are_disjoint_cover_everything_and_keep_their_order():
    texts = {split: [p.text for p in prompts(split)] for split in SPLITS}
    assert {split: len(set(found)) for split, found in texts.items()} == {"train": 968, "tune": 83, "report": 83}
    assert len({text for found in texts.values() for text in found}) == 1134
    assert {split: [p.text for p in prompts(split)] for split in SPLITS} == texts


def test_held_out_pairs_are_held_out_in_every_relation_and_order():
    def pairs(split):
        scenes = [scene_of(p) for p in prompts(split)]
        return {frozenset(s.things) for s in scenes if s.relation}, [s for s in scenes if s.relation]

    train_pairs, _ = pairs("train")
    tune_pairs, _ = pairs("tune")
    for split, others in (("tune", train_pairs), ("report", train_pairs | tune_pairs)):
        held_pairs, held_scenes = pairs(split)
        assert not others & held_pairs
        assert len(held_scenes) == 8 * len(held_pairs) == 80
        assert {s.relation for s in held_scenes} == set(RELATIONS)


def test_held_out_counts_are_not_trained_and_every_word_is():
    combination = lambda p: (len(scene_of(p).things), scene_of(p).things[0])  # noqa: E731
    train = {combination(p) for p in prompts("train") if p.metadata["kind"] == "count"}
    held_out = {combination(p) for p in prompts("tune") + prompts("report") if p.metadata["kind"] == "count"}
    assert len(held_out) == 6
    assert not train & held_out
    words = {word for p in prompts("train") for word in p.text.split()}
    assert {word for p in prompts("tune") + prompts("report") for word in p.text.split()} <= words


def test_an_unknown_split_is_refused():
    with pytest.raises(ConfigError, match="shapes has the splits train, tune and report. Got 'test'"):
        prompts("test")


def test_every_prompt_parses_and_formats_back():
    for prompt in (p for split in SPLITS for p in prompts(split)):
        assert format_prompt(parse_prompt(prompt.text)) == prompt.text
    assert parse_prompt("  A red CIRCLE left  of a blue square. ") == parse_prompt("a red circle left of a blue square")


@pytest.mark.parametrize(
    "text",
    ["", "a cat", "two red circle", "a red circles", "a red circle left of a red square", "four red circles",
     "a red circle left of two blue squares", "a red circle near a blue square", "a red circle left of"],
)  # fmt: skip
def test_prompts_outside_the_grammar_are_refused(text):
    with pytest.raises(RewardError, match="Colours: red"):
        parse_prompt(text)


def test_the_same_seed_draws_the_same_picture():
    scene = scene_of("three black triangles")
    first, again, other = (render(scene, np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert first.shape == (32, 32, 3) and first.dtype == np.uint8
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert render(scene, np.random.default_rng(5), size=47).shape == (47, 47, 3)


def test_renders_show_the_scene():
    """Independent of the checker: exact colours at the centres, inked area, background elsewhere, nothing touching."""
    rng = np.random.default_rng(0)
    sample = prompts("train")[:968:7]
    size = 64
    for prompt in sample:
        scene = scene_of(prompt)
        state = rng.bit_generator.state
        placed = sample_scene(scene, rng)
        rng.bit_generator.state = state
        picture = render(scene, rng, size).astype(int)
        for item in placed:
            centre = picture[int(item.y * size), int(item.x * size)]
            assert tuple(centre) == PALETTE[item.thing.color]
        for color in {item.thing.color for item in placed}:
            inked = (picture == PALETTE[color]).all(-1).sum()
            area = sum(np.pi * (item.radius * size) ** 2 for item in placed if item.thing.color == color)
            assert 0.75 * area < inked < area  # the anti-aliased rim is not counted
        assert tuple(picture[0, 0]) == BACKGROUND
        border = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
        assert (border == BACKGROUND).all()
        for a, b in combinations(placed, 2):
            assert np.hypot(a.x - b.x, a.y - b.y) > 1.7 * (a.radius + b.radius) / 2
        if scene.relation:
            (ax, ay), (bx, by) = ((item.x, item.y) for item in placed)
            assert {"left of": ax < bx, "right of": ax > bx, "above": ay < by, "below": ay > by}[scene.relation]
