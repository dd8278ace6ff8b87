"""The verifiable scorers: truth passes, everything else does not, and the parts say why."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from diffrl.data.shapes import PlacedThing, draw, prompts, render, scene_of
from reward_models import RewardBatch, RewardError, load_reward
from reward_models.images.shapes import PALETTE, Thing, coverage
from reward_models.images.shapes_vision import oklab

RED_CIRCLE = PlacedThing(Thing("red", "circle"), 0.3, 0.35, 0.14)
BLUE_SQUARE = PlacedThing(Thing("blue", "square"), 0.7, 0.45, 0.14)
PAIR = "a red circle left of a blue square"


def media(pictures):
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)


def parts(picture, text):
    output = load_reward("shapes")(RewardBatch(media([picture]), [text]))
    return {name: float(value) for name, value in output.parts.items()} | {"raw": float(output.raw)}


def ink(*layers, size=32):
    """Layers of (mask, RGB) on the background, for colours and forms that the world does not have."""
    canvas = np.full((size, size, 3), 232.0)
    for mask, color in layers:
        canvas += mask[..., None] * (np.array(color) - canvas)
    return np.rint(canvas).astype(np.uint8)


@pytest.fixture(scope="module")
def truth():
    rng = np.random.default_rng(3)
    everything = prompts("report")
    texts = [everything[i].text for i in rng.integers(0, len(everything), 400)]
    return [render(scene_of(text), rng) for text in texts], texts


def strict(pictures, texts):
    return load_reward("shapes_strict")(RewardBatch(media(pictures), texts)).raw


def test_rendered_truth_passes_and_other_captions_do_not(truth):
    pictures, texts = truth
    assert strict(pictures, texts).mean() >= 0.99
    assert strict(pictures, texts[1:] + texts[:1]).mean() <= 0.02


def test_strict_is_one_part_of_both_scorers_and_truth_is_graded_above_every_failure(truth):
    pictures, texts = truth
    mixed = [other if i % 2 else own for i, (own, other) in enumerate(zip(texts, texts[1:] + texts[:1], strict=True))]
    batch = RewardBatch(media(pictures), mixed)
    graded, passed = load_reward("shapes")(batch), load_reward("shapes_strict")(batch)
    assert torch.equal(graded.parts["strict"], passed.raw)
    assert set(passed.raw.tolist()) == {0.0, 1.0}
    assert ((graded.raw >= 0) & (graded.raw <= 1)).all()
    assert graded.raw[passed.raw == 1].min() > graded.raw[passed.raw == 0].max()


def test_ties_are_rare_among_imperfect_pictures(truth):
    """Sixteen images of one prompt, as an update compares them, each off in its own way."""
    rng = np.random.default_rng(0)
    same = pairs = 0
    for picture, text in zip(*(values[:40] for values in truth), strict=True):
        rough = [np.clip(picture + rng.normal(0, 4, picture.shape), 0, 255).round().astype(np.uint8) for _ in range(16)]
        raw = load_reward("shapes")(RewardBatch(media(rough), [text] * 16)).raw
        same += int((raw[:, None] == raw).sum()) - 16
        pairs += 16 * 15
    assert same / pairs < 0.01


@pytest.mark.long
def test_a_decoder_like_blur_still_passes(truth):
    pictures, texts = truth
    blurred = [ndimage.gaussian_filter(p.astype(float), (0.5, 0.5, 0)).round().astype(np.uint8) for p in pictures]
    assert strict(blurred, texts).mean() >= 0.97


def test_larger_pictures_are_scored_alike():
    rng = np.random.default_rng(1)
    texts = [p.text for p in prompts("report")[::60]]
    pictures = [render(scene_of(text), rng, size=96) for text in texts]
    assert strict(pictures, texts).mean() >= 0.98


@pytest.mark.parametrize(
    ("text", "wrong", "right", "reason"),
    [
        ("a red circle left of a green square", {"colour": 0.5, "relation": 0}, {"count", "shape"},
         "colour: 1 of 2; not left of"),
        ("a red triangle left of a blue square", {"shape": 0.5}, {"count", "colour", "relation"}, "shape: 1 of 2"),
        ("a red square left of a blue circle", {"binding": 0, "shape": 0}, {"count", "colour"}, "shape: 0 of 2"),
        ("a red circle below a blue square", {"relation": 0.0}, {"count", "colour", "shape"}, "not below"),
        ("a red circle left of a blue square and above a black circle", {"colour": 2 / 3, "relation": 0.5}, {"clean"},
         "2 objects, not 3; not above"),
        ("a red circle", {"count": 0, "colour": 0.5, "shape": 0.5}, {"clean"}, "2 objects, not 1"),
        ("three red circles", {"count": 2 / 3, "colour": 1 / 3}, {"clean"},
         "2 objects, not 3; colour: 1 of 2; shape: 1 of 2"),
        ("a small red circle left of a blue square", {"size": 0.7}, {"colour", "relation"}, "size: 1 of 2"),
    ],
)  # fmt: skip
def test_each_mistake_costs_its_own_part_and_is_named(text, wrong, right, reason):
    picture = draw((RED_CIRCLE, BLUE_SQUARE), 32)
    result = parts(picture, text)
    assert result["strict"] == 0
    assert {name: result[name] for name in wrong} == pytest.approx(wrong, abs=0.12)
    assert all(result[name] > 0.8 for name in right)
    output = load_reward("shapes_strict")(RewardBatch(media([picture]), [text]))
    assert output.notes == [reason]


def test_a_distractor_counts_against_the_picture():
    extra = PlacedThing(Thing("black", "triangle"), 0.5, 0.8, 0.12)
    with_it, without = (
        parts(draw(things, 32), PAIR) for things in ((RED_CIRCLE, BLUE_SQUARE, extra), (RED_CIRCLE, BLUE_SQUARE))
    )
    assert with_it["count"] == 0.5 and with_it["strict"] == 0
    for name in ("colour", "shape", "binding"):
        assert with_it[name] == pytest.approx(2 / 3 * without[name])


def test_objects_that_touch_are_two_if_their_colours_differ():
    left, right = (PlacedThing(Thing(color, "square"), x, 0.5, 0.14) for color, x in (("red", 0.376), ("blue", 0.624)))
    assert parts(draw((left, right), 32), "a red square left of a blue square")["count"] == 1


def test_specks_and_smudges_are_not_clean():
    clean = draw((RED_CIRCLE, BLUE_SQUARE), 32)
    speck, smudge = clean.copy(), clean.copy()
    speck[26:29, 14:16] = PALETTE["black"]
    smudge[24:30, 8:20] -= 30
    for picture in (speck, smudge):
        result = parts(picture, PAIR)
        assert result["clean"] < 0.9 and result["strict"] == 0 and result["binding"] > 0.8


def falling(values):
    return all(a > b for a, b in zip(values, values[1:], strict=False))


@pytest.mark.parametrize(("name", "other"), [("yellow", "orange"), ("blue", "purple")])
def test_a_drifting_colour_costs_more_the_farther_it_drifts_and_fails_before_it_is_half_way(name, other):
    circle = coverage("circle", 16, 16, 64, 32, 32)
    mixed = [np.array(PALETTE[name]) * (1 - w) + np.array(PALETTE[other]) * w for w in (0, 0.1, 0.2, 0.3, 0.4)]
    results = [parts(ink((circle, color)), f"a {name} circle") for color in mixed]
    assert results[0]["strict"] == 1 and results[-1]["strict"] == 0
    assert falling([result["colour"] for result in results]) and falling([result["raw"] for result in results])


def test_grey_is_not_black():
    assert parts(ink((coverage("circle", 16, 16, 64, 32, 32), (60, 60, 60))), "a black circle")["strict"] == 0


def test_two_tones_are_no_colour():
    circle = coverage("circle", 16, 16, 64, 32, 32)
    lower = circle * (np.arange(32) >= 17)[:, None]
    result = parts(ink((circle, PALETTE["red"]), (lower, PALETTE["purple"])), "a red circle")
    assert result["colour"] < 0.6 and result["strict"] == 0


def test_a_square_with_horns_costs_more_the_longer_they_are():
    """Corners drawn out along the diagonals, the sides hollow, as aligned policies like to draw them."""
    y, x = np.abs(np.mgrid[:32, :32] + 0.5 - 16)
    results = []
    for hollow in (0, 0.1, 0.2, 0.3, 0.45):
        side = 4.4 * (1 - hollow / 2) + hollow * np.minimum(x, y)  # half the side at each height
        mask = np.clip(0.5 - (np.maximum(x, y) - side), 0, 1)
        results.append(parts(ink((mask, PALETTE["red"])), "a red square"))
    assert results[0]["strict"] == 1 and results[-1]["strict"] == 0
    assert falling([result["shape"] for result in results])


@pytest.mark.parametrize("form", ["squircle", "ellipse", "diamond", "ring"])
def test_what_is_no_clear_shape_is_none(form):
    y, x = np.mgrid[:32, :32] + 0.5 - 16
    distance = {
        "squircle": (np.abs(x) ** 4 + np.abs(y) ** 4) ** (1 / 4) - 4.5,
        "ellipse": np.hypot(x / 1.25, y * 1.25) - 4.8,
        "diamond": (np.abs(x) + np.abs(y)) / np.sqrt(2) - 4.3,
        "ring": np.abs(np.hypot(x, y) - 4.4) - 1.6,
    }[form]
    picture = ink((np.clip(0.5 - distance, 0, 1), PALETTE["green"]))
    for shape in ("circle", "square", "triangle"):
        result = parts(picture, f"a green {shape}")
        assert result["shape"] < 0.5 and result["strict"] == 0 and result["colour"] > 0.9


@pytest.mark.parametrize(("asked", "radius", "passes"), [
    ("a small red circle", 0.10, True), ("a small red circle", 0.135, False), ("a large red circle", 0.165, True),
    ("a large red circle", 0.135, False), ("a red circle", 0.06, False), ("a red circle", 0.25, False),
])  # fmt: skip
def test_sizes_are_judged_where_they_are_asked_for_and_extremes_always(asked, radius, passes):
    picture = draw((PlacedThing(Thing("red", "circle"), 0.5, 0.5, radius),), 32)
    result = parts(picture, asked)
    assert bool(result["strict"]) == passes
    assert (result["binding"] > 0.8) >= passes


def test_a_relation_is_worth_more_the_clearer_it_holds():
    places = (0.35, 0.45, 0.5, 0.55, 0.65)
    pictures = [
        draw(
            (PlacedThing(Thing("red", "circle"), x, 0.25, 0.12), PlacedThing(Thing("blue", "square"), 0.5, 0.7, 0.12)),
            32,
        )
        for x in places
    ]
    credit = [parts(picture, PAIR)["relation"] for picture in pictures]
    assert credit == sorted(credit, reverse=True) and credit[-1] == 0
    diagonal = draw(
        (PlacedThing(Thing("red", "circle"), 0.25, 0.25, 0.12), PlacedThing(Thing("blue", "square"), 0.7, 0.7, 0.12)),
        32,
    )
    assert parts(diagonal, PAIR)["strict"] == parts(diagonal, "a red circle above a blue square")["strict"] == 1


def test_cut_shapes_do_not_pass():
    assert parts(ink((coverage("circle", 2, 16, 64, 32, 32), PALETTE["red"])), "a red circle")["strict"] == 0


def test_perceptual_colours_are_oklabs():
    """Reference values of Ottosson's page: white, and sRGB red."""
    found = oklab(np.array([[255, 255, 255], [255, 0, 0]], dtype=np.uint8))
    assert found == pytest.approx(np.array([[1, 0, 0], [0.62796, 0.22486, 0.12585]]), abs=1e-4)


def test_an_empty_picture_fails_without_failing():
    result = parts(np.full((32, 32, 3), 232, dtype=np.uint8), PAIR)
    assert result["count"] == result["colour"] == result["relation"] == result["strict"] == 0


def test_a_prompt_outside_the_grammar_is_nan_and_leaves_its_neighbours_alone():
    picture = draw((RED_CIRCLE, BLUE_SQUARE), 32)
    output = load_reward("shapes")(RewardBatch(media([picture] * 3), [PAIR, "a cat", PAIR]))
    assert output.ok.tolist() == [True, False, True]
    assert output.raw[0] == output.raw[2] > 0.9 and math.isnan(output.raw[1])
    assert "'a cat'" in output.errors[1] and output.errors[0] is None
    assert all(math.isnan(values[1]) for values in output.parts.values())


def test_tolerances_are_options_and_wrong_ones_are_refused():
    picture = draw((RED_CIRCLE, BLUE_SQUARE), 32)
    batch = RewardBatch(media([picture]), [PAIR])
    assert load_reward("shapes_strict", separation=0.6)(batch).raw == 0
    with pytest.raises(RewardError, match="tolerance"):
        load_reward("shapes", tolerance=1)
    with pytest.raises(RewardError, match="separation"):
        load_reward("shapes", separation=-1.0)
    with pytest.raises(RewardError, match="fit_radius > 0"):  # others are divided by it
        load_reward("shapes", fit_radius=0)
