"""Artefacts to be looked at are told from what may be measured: through the store, at sizes where they differ."""

from collections import Counter

import pytest
import torch
from PIL import Image

from diffrl.run.summary import write_before_after
from diffrl.tracking.store import SampleStore
from reward_models.common.webp import is_lossless
from reward_models.media import read_media, to_pil
from reward_models.scoring.runs import samples_of_run
from tests.tracking.evaluated import LAST, SAMPLES, SPREAD, evaluate, image


@pytest.fixture
def run(tmp_path):
    """Most samples stay; of those outside the even spread two win and two lose."""
    evaluate(tmp_path, 0, [0.5] * SAMPLES)
    evaluate(tmp_path, 10, LAST)
    return tmp_path


def measured(run, iteration):
    """Whatever a scorer would be given: each picture's place and pixels."""
    skipped = Counter()
    items = samples_of_run(run, "eval", [iteration], skipped)
    found = {}
    for item in items:
        with Image.open(item.path) as opened:
            found[item.sample["group"]] = read_media(opened)
    return found, skipped


def test_what_is_measured_of_both_evaluations_has_the_pixels_that_were_generated(run):
    for iteration in (0, 10):
        found, skipped = measured(run, iteration)
        assert sorted(found) == [0, 3, 6, 9] and all(torch.equal(found[g], image(g, 128)) for g in found)
        assert sum(skipped.values()) == SAMPLES - SPREAD
    with SampleStore.open_readonly(run) as store:
        for one in store.read(stage="eval"):
            if one.file is not None:
                assert one.exact == torch.equal(store.picture(one), image(one.group, 128))


def test_extremes_do_not_stand_for_all(run):
    with SampleStore.open_readonly(run) as store:
        last = store.read(stage="eval", iteration=10)
    assert {s.group for s in last if s.representative is False} == {1, 2, 4, 5}
    assert {s.group for s in last if s.counts} == {0, 3, 6, 9}


def test_small_worlds_keep_every_pixel_of_the_first_evaluation(tmp_path):
    evaluate(tmp_path, 0, [0.5] * SAMPLES, size=48)
    found, _ = measured(tmp_path, 0)
    assert len(found) == SAMPLES and all(torch.equal(found[g], image(g, 48)) for g in found)


def test_the_grid_of_a_run_shows_no_extremes(run, monkeypatch):
    shown = []
    monkeypatch.setattr("diffrl.run.summary.comparison_grid", lambda cells, **_: shown.extend(cells) or Nothing())
    assert write_before_after(run, "none", 10, run / "before_after.png")
    assert [cell.caption for cell in shown] == [f"prompt {g}" for g in (0, 3, 6, 9)]


class Nothing:
    def save(self, path):
        """A grid that is not looked at."""


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 85}])
@pytest.mark.parametrize("frames", [1, 3])
def test_the_encoding_is_read_from_the_chunks(tmp_path, options, frames):
    first, *others = (to_pil(image(place, 61)) for place in range(frames))
    moving = {"save_all": True, "append_images": others} if others else {}
    first.save(tmp_path / "a.webp", xmp=b"frames=3", **moving, **options)
    assert is_lossless(tmp_path / "a.webp") == ("lossless" in options)
