"""The embedded world of moving shapes: splits, grammar and rendering."""

from itertools import combinations

import numpy as np
import pytest

from diffrl.data.moving import FRAMES, RADIUS, TRAVEL, prompts, render, sample_path, scene_of
from diffrl.data.worlds import SPLITS
from reward_models.common.errors import RewardError
from reward_models.images.shapes import BACKGROUND, PALETTE, SHAPES
from reward_models.videos.moving_shapes import COLORS, MOTIONS, parse_prompt

STEPS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1), "still": (0, 0)}


def test_the_splits_are_disjoint_cover_everything_and_keep_their_order():
    texts = {split: [p.text for p in prompts(split)] for split in SPLITS}
    assert {split: len(set(found)) for split, found in texts.items()} == {"train": 60, "tune": 15, "report": 15}
    everything = {f"a {c} {s} {m}" for c in COLORS for s in SHAPES for m in MOTIONS}
    assert sorted(text for found in texts.values() for text in found) == sorted(everything)
    assert {split: [p.text for p in prompts(split)] for split in SPLITS} == texts


@pytest.mark.parametrize("words", list(combinations(range(3), 2)))
def test_every_pair_of_attributes_is_trained_and_every_single_one_is_in_all_splits(words):
    def attributes(split):
        clips = [scene_of(p) for p in prompts(split)]
        return [(c.thing.color, c.thing.shape, c.motion) for c in clips]

    sizes = (len(COLORS), len(SHAPES), len(MOTIONS))
    pairs = {tuple(clip[i] for i in words) for clip in attributes("train")}
    assert len(pairs) == sizes[words[0]] * sizes[words[1]]
    for i, size in enumerate(sizes):
        assert all(len({clip[i] for clip in attributes(split)}) == size for split in ("tune", "report"))


@pytest.mark.parametrize(
    "text",
    ["", "a red circle", "a red circle moving away", "two red circles moving left", "a pink circle moving up",
     "a red circle moving left slowly"],
)  # fmt: skip
def test_prompts_outside_the_grammar_are_refused(text):
    with pytest.raises(RewardError, match="Colours: red"):
        parse_prompt(text)


@pytest.mark.parametrize("text", [p.text for p in prompts("tune")])
def test_renders_show_the_motion(text):
    """Independent of the checker: the mean position of the inked pixels, by plain arithmetic, at a large size."""
    size, rng = 96, np.random.default_rng(len(text))
    video = render(scene_of(text), rng, size).astype(float)
    weights = np.abs(video - np.array(BACKGROUND)).sum(-1)  # (F, H, W)
    y, x = np.mgrid[:size, :size] + 0.5
    places = np.array([[(w * x).sum() / w.sum(), (w * y).sum() / w.sum()] for w in weights]) / size
    step = np.array(STEPS[text.split()[-1]])
    way = places[-1] - places[0]
    travel = np.abs(way).sum()
    np.testing.assert_allclose(way, step * travel, atol=0.002)
    assert travel < 0.002 if not step.any() else TRAVEL[0] - 0.002 < travel < TRAVEL[1] + 0.002
    np.testing.assert_allclose(np.diff(places, axis=0), np.tile(way / (FRAMES - 1), (FRAMES - 1, 1)), atol=0.002)

    color = PALETTE[text.split()[1]]
    for frame in video:
        border = np.concatenate([frame[0], frame[-1], frame[:, 0], frame[:, -1]])
        assert (border == BACKGROUND).all()
        inked = (frame == color).all(-1).mean()  # the anti-aliased rim is not counted
        assert 0.75 * np.pi * RADIUS[0] ** 2 < inked < np.pi * RADIUS[1] ** 2


def test_paths_differ_in_place_speed_and_size():
    clip = scene_of("a blue square moving down")
    paths = [sample_path(clip, np.random.default_rng(seed)) for seed in range(200)]
    starts = np.array([[path[0].x, path[0].y] for path in paths])
    travels = np.array([path[-1].y - path[0].y for path in paths])
    radii = np.array([path[0].radius for path in paths])
    assert starts.std(0).min() > 0.03
    assert travels.min() < TRAVEL[0] + 0.01 and travels.max() > TRAVEL[1] - 0.01
    assert radii.min() < RADIUS[0] + 0.002 and radii.max() > RADIUS[1] - 0.002
