"""The verifiable scorers of moving shapes: truth passes, every cheat does not, and the parts say why."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from diffrl.data.moving import prompts, render, scene_of
from diffrl.data.shapes import PlacedThing, draw
from reward_models import RewardBatch, RewardError, load_reward
from reward_models.images.shapes import Thing

TEXT = "a red circle moving right"
LINE = np.linspace(0.3, 0.66, 9)


def media(clips):
    return torch.from_numpy(np.stack(clips)).permute(0, 1, 4, 2, 3)


def film(xs, ys=None, things=("red circle",) * 9, radius=0.15):
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


@pytest.fixture(scope="module")
def truth():
    rng = np.random.default_rng(3)
    texts = [p.text for p in prompts("train") + prompts("tune") + prompts("report")] * 2
    return [render(scene_of(text), rng) for text in texts], texts


def test_rendered_truth_passes_and_other_captions_do_not(truth):
    clips, texts = truth
    scorer = load_reward("moving_shapes_strict")
    assert scorer(RewardBatch(media(clips), texts)).raw.mean() == 1
    for shift in (1, 5, 15, 40):  # another motion, shape, colour, all of them
        assert scorer(RewardBatch(media(clips), texts[shift:] + texts[:shift])).raw.mean() <= 0.01


def test_partial_credit_is_full_exactly_where_strict_passes(truth):
    clips, texts = truth
    mixed = [other if i % 2 else own for i, (own, other) in enumerate(zip(texts, texts[1:] + texts[:1], strict=True))]
    batch = RewardBatch(media(clips), mixed)
    partial, strict = load_reward("moving_shapes")(batch), load_reward("moving_shapes_strict")(batch)
    assert torch.equal(partial.raw == 1, strict.raw == 1)
    assert torch.equal(partial.parts["strict"], strict.raw)
    assert set(strict.raw.tolist()) == {0.0, 1.0}
    assert ((partial.raw >= 0) & (partial.raw <= 1)).all()


@pytest.mark.long
def test_a_decoder_like_blur_and_a_larger_picture_still_pass(truth):
    clips, texts = truth
    blurred = [ndimage.gaussian_filter(c.astype(float), (0.2, 0.5, 0.5, 0)).round().astype(np.uint8) for c in clips]
    scorer = load_reward("moving_shapes_strict")
    assert scorer(RewardBatch(media(blurred), texts)).raw.mean() >= 0.97
    rng = np.random.default_rng(1)
    large = [render(scene_of(text), rng, size=96, frames=5) for text in texts[::7]]
    assert scorer(RewardBatch(media(large), texts[::7])).raw.mean() == 1


def test_the_right_clip_gets_every_part():
    assert set(parts(film(LINE)).values()) == {1.0}
    assert set(parts(film([0.4] * 9), "a red circle staying still").values()) == {1.0}


RED, HALF = "red circle", (0.3,) * 4 + (0.66,) * 5
CHEATS = {
    "static clip": (film([0.5] * 9), {"direction": 0, "smooth": 1, "object": 1}),
    "reverse direction": (film(LINE[::-1]), {"direction": 0, "smooth": 1, "object": 1}),
    "teleport": (film(HALF), {"direction": 1, "object": 1}),
    "backwards in the middle": (film([*LINE[:4], 0.2, *LINE[5:]]), {"direction": 1, "smooth": 6 / 8}),
    "back and forth": (film([*LINE[:5], *LINE[3::-1]]), {"direction": 0, "object": 1}),
    "wrong axis": (film([0.5] * 9, LINE), {"direction": 0, "smooth": 1}),
    "diagonal": (film(LINE, LINE), {"direction": 0.5, "smooth": 1}),
    "too short a way": (film(np.linspace(0.4, 0.5, 9)), {"direction": 0.5, "smooth": 1}),
    "flickering colour": (film(LINE, things=(*(RED,) * 4, "blue circle", *(RED,) * 4)), {"colour": 8 / 9, "smooth": 1}),
    "flickering shape": (film(LINE, things=(*(RED,) * 4, "red square", *(RED,) * 4)), {"shape": 8 / 9, "colour": 1}),
    "vanishing for a frame": (film(LINE, things=(*(RED,) * 4, None, *(RED,) * 4)), {"smooth": 6 / 8, "count": 8 / 9}),
    "vanishing at the end": (film(LINE, things=(*(RED,) * 8, None)), {"smooth": 7 / 8, "direction": 1}),
    "pulsating": (film(LINE, radius=np.tile([0.12, 0.17, 0.12], 3)), {"object": 1, "direction": 1}),
    "wrong object": (film(LINE, things=("blue square",) * 9), {"direction": 1, "smooth": 1, "colour": 0, "shape": 0}),
}


@pytest.mark.parametrize("name", CHEATS)
def test_each_cheat_fails_and_costs_its_own_part(name):
    clip, expected = CHEATS[name]
    result = parts(clip)
    assert result["strict"] == 0 and result["raw"] == result["partial"] < 1
    assert {part: result[part] for part in expected} == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("name", ["teleport", "back and forth", "pulsating", "vanishing for a frame"])
def test_uneven_motion_is_not_smooth(name):
    assert parts(CHEATS[name][0])["smooth"] < 1


def test_what_should_stay_must_not_move():
    result = parts(film(LINE), "a red circle staying still")
    assert result["direction"] < 0.25 and result["strict"] == 0
    swing = parts(film([0.4, 0.46, 0.4, 0.46, 0.4, 0.46, 0.4, 0.46, 0.4]), "a red circle staying still")
    assert swing["direction"] < 1 and swing["smooth"] < 1


def test_a_second_object_and_smudges_count_against_the_clip():
    clip = film(LINE)
    double, smudged = clip.copy(), clip.copy()
    double[:, 22:] = film(LINE, [0.85] * 9, things=("black square",) * 9, radius=0.11)[:, 22:]
    smudged[3, 26:30, 4:20] -= 25
    assert parts(double)["count"] == 0 and parts(double)["strict"] == 0
    assert parts(smudged)["clean"] == pytest.approx(8 / 9) and parts(smudged)["strict"] == 0


def test_empty_clips_fail_without_failing():
    for text in (TEXT, "a red circle staying still"):
        result = parts(film(LINE, things=(None,) * 9), text)
        assert result["count"] == result["direction"] == result["smooth"] == result["strict"] == 0


def test_a_sample_does_not_depend_on_its_batch(truth):
    clips, texts = truth[0][:23], truth[1][1:24]
    together = load_reward("moving_shapes")(RewardBatch(media(clips), texts))
    alone = [load_reward("moving_shapes")(RewardBatch(media([c]), [t])) for c, t in zip(clips, texts, strict=True)]
    assert torch.equal(together.raw, torch.cat([output.raw for output in alone]))
    for name, values in together.parts.items():
        assert torch.equal(values, torch.cat([output.parts[name] for output in alone]))


def test_a_prompt_outside_the_grammar_is_nan_and_leaves_its_neighbours_alone():
    output = load_reward("moving_shapes")(RewardBatch(media([film(LINE)] * 3), [TEXT, "a red circle", TEXT]))
    assert output.ok.tolist() == [True, False, True]
    assert output.raw[0] == output.raw[2] == 1 and math.isnan(output.raw[1])
    assert "'a red circle'" in output.errors[1] and output.errors[0] is None
    assert all(math.isnan(values[1]) for values in output.parts.values())


def test_media_that_are_no_videos_are_refused():
    with pytest.raises(RewardError, match="scores videos. Got images"):
        load_reward("moving_shapes")(RewardBatch(torch.zeros((1, 3, 32, 32), dtype=torch.uint8), [TEXT]))


@pytest.mark.parametrize("name", ["moving_shapes", "moving_shapes_strict"])
@pytest.mark.parametrize("frames", [0, 1, 2])
def test_clips_of_too_few_frames_fail_as_samples(name, frames):
    clip = film(LINE)[[0, 8, 4][:frames]]
    output = load_reward(name)(RewardBatch(media([clip] * 2), [TEXT, "nonsense"]))
    assert output.ok.tolist() == [False, False] and output.raw.isnan().all()
    assert output.errors[0] == f"{name} needs 3 frames, and the clip has {frames}" and "'nonsense'" in output.errors[1]
    assert all(values.isnan().all() for values in output.parts.values())
    assert load_reward(name)(RewardBatch(media([film(LINE)[[0, 4, 8]]]), [TEXT])).raw == 1


def test_tolerances_are_options_and_wrong_ones_are_refused():
    batch = RewardBatch(media([film(LINE)]), [TEXT])
    assert load_reward("moving_shapes_strict", travel=0.5)(batch).raw == 0
    assert load_reward("moving_shapes_strict", max_area=0.05)(batch).raw == 0  # a tolerance of single frames
    for options in ({"jerk": -1.0}, {"travel": 0.0}, {"speed": 1.0}, {"overlap": -0.1}):
        with pytest.raises(RewardError, match=next(iter(options))):
            load_reward("moving_shapes", **options)


def test_spec_and_device():
    scorer = load_reward("moving_shapes_strict")
    assert scorer.to("cpu") is scorer
    assert scorer.spec.name == "moving_shapes_strict" and scorer.spec.media == ("video",)
