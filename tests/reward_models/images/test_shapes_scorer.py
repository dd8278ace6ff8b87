"""The verifiable scorers: truth passes, everything else does not, and the parts say why."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from diffrl.data.shapes import PlacedThing, draw, prompts, render, scene_of
from reward_models import RewardBatch, RewardError, load_reward
from reward_models.images.shapes import PALETTE, Thing, coverage

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
    everything = prompts("train") + (prompts("tune") + prompts("report"))
    texts = [everything[i].text for i in rng.integers(0, len(everything), 700)]
    return [render(scene_of(text), rng) for text in texts], texts


def test_rendered_truth_passes_and_other_captions_do_not(truth):
    pictures, texts = truth
    scorer = load_reward("shapes_strict")
    assert scorer(RewardBatch(media(pictures), texts)).raw.mean() >= 0.98
    shifted = texts[1:] + texts[:1]
    assert scorer(RewardBatch(media(pictures), shifted)).raw.mean() <= 0.02


def test_partial_credit_is_full_exactly_where_strict_passes(truth):
    pictures, texts = truth
    mixed = [other if i % 2 else own for i, (own, other) in enumerate(zip(texts, texts[1:] + texts[:1], strict=True))]
    batch = RewardBatch(media(pictures), mixed)
    partial, strict = load_reward("shapes")(batch), load_reward("shapes_strict")(batch)
    assert torch.equal(partial.raw == 1, strict.raw == 1)
    assert torch.equal(partial.parts["strict"], strict.raw)
    assert set(strict.raw.tolist()) == {0.0, 1.0}
    assert ((partial.raw >= 0) & (partial.raw <= 1)).all()


@pytest.mark.long
def test_a_decoder_like_blur_still_passes(truth):
    pictures, texts = truth
    blurred = [ndimage.gaussian_filter(p.astype(float), (0.5, 0.5, 0)).round().astype(np.uint8) for p in pictures]
    assert load_reward("shapes_strict")(RewardBatch(media(blurred), texts)).raw.mean() >= 0.97


def test_larger_pictures_are_scored_alike():
    rng = np.random.default_rng(1)
    texts = [p.text for p in (prompts("tune") + prompts("report"))[::5]]
    pictures = [render(scene_of(text), rng, size=96) for text in texts]
    assert load_reward("shapes_strict")(RewardBatch(media(pictures), texts)).raw.mean() >= 0.98


def test_the_right_picture_gets_every_part():
    assert set(parts(draw((RED_CIRCLE, BLUE_SQUARE), 32), PAIR).values()) == {1.0}


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        ("a red circle left of a green square", {"colour": 0.5, "binding": 0.5, "relation": 0}, {"count", "shape"}),
        ("a red triangle left of a blue square", {"shape": 0.5, "binding": 0.5}, {"count", "colour", "relation"}),
        ("a red square left of a blue circle", {"binding": 0, "shape": 0}, {"count", "colour", "relation"}),
        ("a red circle right of a blue square", {"relation": 0}, {"count", "colour", "shape", "binding"}),
        ("a red circle above a blue square", {"relation": 0}, {"count", "colour", "shape", "binding"}),
        ("a red circle", {"count": 0, "colour": 0.5, "shape": 0.5}, {"clean", "relation"}),
        ("two red circles", {"colour": 0.5, "shape": 0.5, "binding": 0.5}, {"count"}),
        ("three red circles", {"count": 2 / 3, "colour": 1 / 3}, {"clean"}),
    ],
)
def test_each_mistake_costs_its_own_part(text, wrong, right):
    result = parts(draw((RED_CIRCLE, BLUE_SQUARE), 32), text)
    assert result["strict"] == 0
    assert {name: result[name] for name in wrong} == pytest.approx(wrong)
    assert {name for name in right if result[name] == 1} == right


def test_a_distractor_counts_against_the_picture():
    extra = PlacedThing(Thing("black", "triangle"), 0.5, 0.8, 0.12)
    result = parts(draw((RED_CIRCLE, BLUE_SQUARE, extra), 32), PAIR)
    assert result["count"] == 0.5 and result["strict"] == 0
    assert result["colour"] == result["binding"] == pytest.approx(2 / 3)


def test_specks_and_smudges_are_not_clean():
    clean = draw((RED_CIRCLE, BLUE_SQUARE), 32)
    speck, smudge = clean.copy(), clean.copy()
    speck[26:29, 14:16] = PALETTE["black"]
    smudge[24:30, 8:20] -= 30
    for picture in (speck, smudge):
        result = parts(picture, PAIR)
        assert result["clean"] == 0 and result["strict"] == 0 and result["binding"] == 1


def test_a_tinted_background_is_not_clean():
    tinted = np.where(draw((RED_CIRCLE,), 32) == 232, 190, draw((RED_CIRCLE,), 32)).astype(np.uint8)
    assert parts(tinted, "a red circle")["clean"] == 0


@pytest.mark.parametrize(
    ("color", "name"),
    [((245, 165, 40), "yellow"), ((235, 85, 45), "red"), ((80, 65, 200), "blue"), ((60, 60, 60), "black")],
)
def test_colours_between_two_names_are_neither(color, name):
    circle = coverage("circle", 16, 16, 64, 32, 32)
    assert parts(ink((circle, PALETTE[name])), f"a {name} circle")["strict"] == 1
    assert parts(ink((circle, color)), f"a {name} circle")["colour"] == 0


def test_two_tones_are_no_colour():
    circle = coverage("circle", 16, 16, 64, 32, 32)
    lower = circle * (np.arange(32) >= 17)[:, None]
    assert parts(ink((circle, PALETTE["red"]), (lower, PALETTE["purple"])), "a red circle")["colour"] == 0


@pytest.mark.parametrize("form", ["squircle", "ellipse", "diamond", "ring"])
def test_what_is_no_clear_shape_is_none(form):
    y, x = np.mgrid[:32, :32] + 0.5 - 16
    distance = {
        "squircle": (np.abs(x) ** 5 + np.abs(y) ** 5) ** (1 / 5) - 4.5,
        "ellipse": np.hypot(x / 1.2, y * 1.2) - 4.8,
        "diamond": (np.abs(x) + np.abs(y)) / np.sqrt(2) - 4.3,
        "ring": np.abs(np.hypot(x, y) - 4.4) - 1.6,
    }[form]
    picture = ink((np.clip(0.5 - distance, 0, 1), PALETTE["green"]))
    for shape in ("circle", "square", "triangle"):
        result = parts(picture, f"a green {shape}")
        assert result["shape"] == result["strict"] == 0 and result["colour"] == 1


def test_cut_tiny_and_giant_shapes_do_not_pass():
    red = PALETTE["red"]
    for x, area in ((2, 64), (16, 14), (16, 400)):
        assert parts(ink((coverage("circle", x, 16, area, 32, 32), red)), "a red circle")["strict"] == 0


def test_an_empty_picture_fails_without_failing():
    result = parts(np.full((32, 32, 3), 232, dtype=np.uint8), PAIR)
    assert result["count"] == result["colour"] == result["relation"] == result["strict"] == 0


def test_a_sample_does_not_depend_on_its_batch(truth):
    pictures, texts = truth[0][:23], truth[1][1:24]
    together = load_reward("shapes")(RewardBatch(media(pictures), texts))
    alone = [load_reward("shapes")(RewardBatch(media([p]), [t])) for p, t in zip(pictures, texts, strict=True)]
    assert torch.equal(together.raw, torch.cat([output.raw for output in alone]))
    for name, values in together.parts.items():
        assert torch.equal(values, torch.cat([output.parts[name] for output in alone]))


def test_a_prompt_outside_the_grammar_is_nan_and_leaves_its_neighbours_alone():
    picture = draw((RED_CIRCLE, BLUE_SQUARE), 32)
    output = load_reward("shapes")(RewardBatch(media([picture] * 3), [PAIR, "a cat", PAIR]))
    assert output.ok.tolist() == [True, False, True]
    assert output.raw[0] == output.raw[2] == 1 and math.isnan(output.raw[1])
    assert "'a cat'" in output.errors[1] and output.errors[0] is None
    assert all(math.isnan(values[1]) for values in output.parts.values())


def test_media_that_are_no_pictures_are_refused():
    scorer = load_reward("shapes")
    with pytest.raises(RewardError, match="uint8"):
        scorer(RewardBatch(torch.rand(1, 3, 32, 32), [PAIR]))
    with pytest.raises(RewardError, match="scores images. Got videos.*video_mean"):
        scorer(RewardBatch(torch.zeros(1, 5, 3, 32, 32, dtype=torch.uint8), [PAIR]))


def test_tolerances_are_options_and_wrong_ones_are_refused():
    picture = draw((RED_CIRCLE, BLUE_SQUARE), 32)
    batch = RewardBatch(media([picture]), [PAIR])
    assert load_reward("shapes_strict", separation=0.6)(batch).raw == 0
    with pytest.raises(RewardError, match="tolerance"):
        load_reward("shapes", tolerance=1)
    with pytest.raises(RewardError, match="separation"):
        load_reward("shapes", separation=-1.0)


def test_spec_and_device():
    scorer = load_reward("shapes_strict")
    assert scorer.to("cpu") is scorer
    assert scorer.spec.name == "shapes_strict" and scorer.spec.range == (0.0, 1.0)
