"""The verifiable scorers of moving shapes: truth passes, no cheat does, grades fall smoothly, reasons say why."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from diffrl.data.moving import prompts, render, scene_of
from diffrl.data.shapes import PlacedThing, draw
from reward_models import RewardBatch, RewardError, load_reward
from reward_models.images.shapes import Thing
from reward_models.images.shapes_vision import BACKGROUND, PALETTE
from reward_models.videos.moving_shapes import COLORS, ClipTolerances, judge_clips, parse_prompt

TEXT = "a red circle moving right"
STILL = "a red circle staying still"
LINE = np.linspace(0.3, 0.66, 9)
RED, GREY = np.array(PALETTE["red"]), np.array(BACKGROUND)


def media(clips):
    return torch.from_numpy(np.stack(clips)).permute(0, 1, 4, 2, 3)


def film(xs, ys=None, things=("red circle",) * 9, radius=0.16):
    """A clip with the thing at these places; None draws an empty frame."""
    ys = [0.5] * len(xs) if ys is None else ys
    radii = np.broadcast_to(radius, len(xs))
    frames = []
    for x, y, name, r in zip(xs, ys, things, radii, strict=True):
        placed = () if name is None else (PlacedThing(Thing(*name.split()), float(x), float(y), float(r)),)
        frames.append(draw(placed, 32))
    return np.stack(frames)


def parts(clip, text=TEXT):
    output = load_reward("moving_shapes")(RewardBatch(media([clip]), [text]))
    return {name: float(value) for name, value in output.parts.items()} | {"raw": float(output.raw)}


def reason(clip, text=TEXT):
    return judge_clips([parse_prompt(text)], clip[None], ClipTolerances()).reasons[0]


@pytest.fixture(scope="module")
def truth():
    rng = np.random.default_rng(3)
    texts = [p.text for p in prompts("train") + prompts("tune") + prompts("report")]
    return [render(scene_of(text), rng) for text in texts], texts


def test_rendered_truth_passes_and_other_captions_do_not(truth):
    clips, texts = truth
    scorer = load_reward("moving_shapes_strict")
    output = scorer(RewardBatch(media(clips), texts))
    assert output.raw.mean() == 1 and output.parts["partial"].min() > 0.9
    own = load_reward("moving_shapes")(RewardBatch(media(clips), texts)).raw
    for shift in (1, 5, 15, 40):  # another motion, shape, colour, all of them
        others = RewardBatch(media(clips), texts[shift:] + texts[:shift])
        assert scorer(others).raw.mean() <= 0.02 and (own - load_reward("moving_shapes")(others).raw).min() > 0.1


@pytest.mark.long
def test_a_decoder_like_blur_and_a_larger_picture_still_pass(truth):
    clips, texts = truth
    blurred = [ndimage.gaussian_filter(c.astype(float), (0.2, 0.5, 0.5, 0)).round().astype(np.uint8) for c in clips]
    scorer = load_reward("moving_shapes_strict")
    assert scorer(RewardBatch(media(blurred), texts)).raw.mean() >= 0.97
    rng = np.random.default_rng(1)
    large = [render(scene_of(text), rng, size=96, frames=5) for text in texts[::7]]
    assert scorer(RewardBatch(media(large), texts[::7])).raw.mean() == 1


def test_an_exact_clip_gets_nearly_everything_and_no_reason():
    for clip, text in ((film(LINE), TEXT), (film([0.4] * 9), STILL)):
        result = parts(clip, text)
        assert result["strict"] == 1 and reason(clip, text) is None
        assert min(result.values()) > 0.9 and result["direction"] == pytest.approx(1, abs=0.01)


HALF = (0.3,) * 4 + (0.66,) * 5
CHEATS = {
    "static clip": (film([0.5] * 9), "direction", "direction: still, not right"),
    "reverse direction": (film(LINE[::-1]), "direction", "direction: left, not right"),
    "teleport": (film(HALF), "smooth", "motion: uneven"),
    "backwards in the middle": (film([*LINE[:4], 0.2, *LINE[5:]]), "smooth", "motion: uneven"),
    "back and forth": (film([*LINE[:5], *LINE[3::-1]]), "direction", "direction: still, not right; motion: uneven"),
    "wrong axis": (film([0.5] * 9, LINE), "direction", "direction: down, not right"),
    "diagonal": (film(LINE, LINE), "direction", "direction: askew"),
    "too short a way": (film(np.linspace(0.4, 0.5, 9)), "direction", "direction: not far enough"),
    "flickering colour": (
        film(LINE, things=("red circle",) * 4 + ("blue circle",) + ("red circle",) * 4),
        "colour",
        "object: 8 of 9 frames (colour)",
    ),
    "flickering shape": (
        film(LINE, things=("red circle",) * 7 + ("red square",) * 2),
        "shape",
        "object: 7 of 9 frames (shape)",
    ),
    "vanishing for a frame": (
        film(LINE, things=("red circle",) * 4 + (None,) + ("red circle",) * 4),
        "count",
        "object: 8 of 9 frames (0 objects, not 1); motion: uneven",
    ),
    "pulsating": (film(LINE, radius=np.tile([0.138, 0.18, 0.138], 3)), "smooth", "motion: size changes"),
    "growing": (film(LINE, radius=np.linspace(0.135, 0.185, 9)), "smooth", "motion: size changes"),
    "too small": (film(LINE, radius=0.11), "object", "object: 0 of 9 frames (size)"),
    "wrong object": (film(LINE, things=("blue square",) * 9), "object", "object: 0 of 9 frames (colour, shape)"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_each_cheat_fails_costs_its_own_part_and_is_named(name):
    clip, part, said = CHEATS[name]
    result, good = parts(clip), parts(film(LINE))
    assert result["strict"] == 0 and result["raw"] == result["partial"] < good["partial"] - 0.02
    assert result[part] < good[part] - 0.08
    assert reason(clip) == said


def test_what_should_stay_must_not_move():
    assert parts(film(LINE), STILL)["direction"] == 0 and reason(film(LINE), STILL) == "direction: right, not still"
    swing = film([0.4, 0.46, 0.4, 0.46, 0.4, 0.46, 0.4, 0.46, 0.4])
    assert parts(swing, STILL)["direction"] < 0.5 and reason(swing, STILL) == "direction: strays; motion: uneven"


def falls(clips, part, text=TEXT):
    """The part over clips that get worse, checked to fall at every step."""
    values = [parts(clip, text)[part] for clip in clips]
    assert all(b < a - 0.005 for a, b in zip(values, values[1:], strict=False)), values
    return values


def test_grades_fall_with_the_size_of_the_fault():
    ways = (0.24, 0.18, 0.12, 0.06)
    short = falls([film(np.linspace(0.4, 0.4 + way, 9)) for way in ways], "direction")
    assert np.allclose(np.divide(short, short[0]), np.divide(ways, ways[0]), atol=0.03)  # in proportion to the way
    falls([film(LINE, 0.5 + slope * (LINE - 0.3)) for slope in (0.0, 0.1, 0.3, 0.6)], "direction")
    wiggle = np.array([0, 1, -1, 1, -1, 1, -1, 1, 0])
    falls([film(LINE, 0.5 + size * wiggle) for size in (0.0, 0.003, 0.006, 0.012)], "smooth")
    falls([film(LINE, radius=0.16 * (1 + size * wiggle)) for size in (0.0, 0.02, 0.05, 0.1)], "smooth")
    falls([film([0.4 + size * i / 8 for i in range(9)]) for size in (0.0, 0.02, 0.04, 0.06)], "direction", STILL)


def test_a_second_object_and_smudges_count_against_the_clip():
    clip = film(LINE)
    double, smudged = clip.copy(), clip.copy()
    double[:, 22:] = film(LINE, [0.85] * 9, things=("black square",) * 9, radius=0.11)[:, 22:]
    smudged[3, 26:30, 4:20] -= 40
    assert parts(double)["count"] == 0 and parts(double)["object"] == pytest.approx(parts(clip)["object"] / 2, abs=0.01)
    assert reason(double) == "object: 0 of 9 frames (2 objects, not 1)"
    assert 8 / 9 <= parts(smudged)["clean"] < 0.95
    assert reason(smudged) == "object: 8 of 9 frames (background not clean)"


def test_empty_clips_fail_without_failing():
    for text in (TEXT, STILL):
        result = parts(film(LINE, things=(None,) * 9), text)
        assert result["object"] == result["direction"] == result["smooth"] == result["strict"] == 0
        once = parts(film(LINE, things=(None,) * 4 + ("red circle",) + (None,) * 4), text)
        assert once["direction"] == once["smooth"] == once["strict"] == 0 < once["object"]


def test_the_world_has_six_colours_and_a_drifted_yellow_is_none_of_them():
    assert set(PALETTE) - set(COLORS) == {"orange"}
    with pytest.raises(RewardError, match="Colours: red, green, blue, yellow, purple, black;"):
        parse_prompt("an orange circle moving left")


def test_a_prompt_outside_the_grammar_is_nan_and_leaves_its_neighbours_alone():
    output = load_reward("moving_shapes")(RewardBatch(media([film(LINE)] * 3), [TEXT, "a red circle", TEXT]))
    assert output.ok.tolist() == [True, False, True]
    assert output.raw[0] == output.raw[2] > 0.9 and math.isnan(output.raw[1])
    assert "'a red circle'" in output.errors[1] and output.errors[0] is None
    assert all(math.isnan(values[1]) for values in output.parts.values())


@pytest.mark.parametrize("frames", [0, 2])
def test_clips_of_too_few_frames_fail_as_samples(frames, name="moving_shapes"):
    clip = film(LINE)[[0, 8, 4][:frames]]
    output = load_reward(name)(RewardBatch(media([clip] * 2), [TEXT, "nonsense"]))
    assert output.ok.tolist() == [False, False] and output.raw.isnan().all()
    assert output.errors[0] == f"{name} needs 3 frames, and the clip has {frames}" and "'nonsense'" in output.errors[1]
    assert all(values.isnan().all() for values in output.parts.values())
    assert load_reward(name)(RewardBatch(media([film(LINE)[[0, 4, 8]]]), [TEXT])).raw > 0.9


def test_tolerances_are_options_and_wrong_ones_are_refused():
    batch = RewardBatch(media([film(LINE)]), [TEXT])
    assert load_reward("moving_shapes_strict", travel=0.5)(batch).raw == 0
    assert load_reward("moving_shapes_strict", max_radius=0.14)(batch).raw == 0  # a tolerance of single frames
    for options in ({"jerk": -1.0}, {"travel": 0.0}, {"speed": 1.0}, {"separation": 0.1}):
        with pytest.raises(RewardError, match=next(iter(options))):
            load_reward("moving_shapes", **options)
