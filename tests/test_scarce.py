"""Where a system has too little of something: one sentence, nothing lost or half written, and it goes on after."""

import errno
import json
import os
import resource
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from PIL import Image

from diffrl.checkpoint.files import latest_checkpoint, save_checkpoint
from diffrl.errors import DiffrlError
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.votes import read_votes, void_vote
from diffrl.terminal.exits import errors_as_messages
from diffrl.tracking.metrics import MetricsLog, read_metrics
from diffrl.tracking.store import SampleStore, StoredSample
from diffrl.trees.write import keep_source
from reward_models import RewardError
from reward_models.scoring.cache import Score, ScoreCache

MOST = 40_000
"""Bytes that a file may have: a store's first tables fit."""


@contextmanager
def small_files(most=MOST):
    """No file grows beyond this: what `ulimit -f` sets, and a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


SCARCE = {
    "-f": (OSError(errno.EFBIG, "File too large"), OSError(errno.ENOSPC, "No space left on device", "a.png")),
    "-n": (OSError(errno.EMFILE, "Too many open files", "a.png"), OSError(errno.ENFILE, "Too many open files")),
    "-u": (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), RuntimeError("can't start new thread")),
}


@pytest.mark.parametrize(("limit", "error"), [(limit, error) for limit, errors in SCARCE.items() for error in errors])
def test_what_is_scarce_is_one_sentence_that_names_the_limit(capsys, limit, error):
    with pytest.raises(SystemExit) as ended, errors_as_messages():
        raise error
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and f"ulimit {limit}" in line and "saved before is intact" in line


def noise(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def sample(root=0, **values):
    return StoredSample("train", 1, 0, root, 7, "a prompt", **values)


IMAGES = {
    "image": lambda: sample(1, picture=noise(3, 256, 256)),
    "clip": lambda: sample(1, picture=noise(3, 3, 128, 128)),
    "small image": lambda: sample(1, small=bytes(2 * MOST)),
    "row": lambda: sample(1, metadata={"words": "x" * 10 * MOST}),
}


@pytest.mark.parametrize("what", IMAGES)
def test_samples(tmp_path, what):
    def files():
        return sorted(path.name for path in (tmp_path / "samples").rglob("*") if path.is_file())

    with SampleStore(tmp_path) as store:
        first = sample(picture=noise(3, 8, 8), rewards={"a/x": 1.0, "b/x": 1.0})
        store.write([first])
        with small_files(), pytest.raises(DiffrlError, match=r"samples.* cannot be (used|written)"):
            store.write([replace(first, total=2.0), IMAGES[what]()])
        assert [one.total for one in store.read()] == [None] and files() == ["0-0.webp"]
        store.write([IMAGES[what]()])
        assert len(store.read()) == 2


def test_the_copy_of_a_source(tmp_path):
    Image.fromarray(noise(3, 200, 200).permute(1, 2, 0).numpy()).save(tmp_path / "a.png")
    with small_files(500), pytest.raises(OSError, match="large|encoder|write"):
        keep_source(str(tmp_path / "a.png"), tmp_path / "copies" / "a.webp")
    assert os.listdir(tmp_path / "copies") == []
    keep_source(str(tmp_path / "a.png"), tmp_path / "copies" / "a.webp")
    assert os.listdir(tmp_path / "copies") == ["a.webp"]


def test_a_checkpoint(tmp_path):
    save_checkpoint(tmp_path, 1, {"policy": {"w": torch.ones(3)}}, {})
    with small_files(), pytest.raises(DiffrlError, match="Free space"):
        save_checkpoint(tmp_path, 2, {"policy": {"w": torch.ones(MOST)}}, {})
    assert os.listdir(tmp_path) == ["step-000001"] and latest_checkpoint(tmp_path, print).step == 1


def test_metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log, small_files(1000), pytest.raises(DiffrlError, match="Cannot write to"):
        for iteration in range(100):
            log.append({"iteration": iteration, "reward/mean": 1 / 3})
    whole = len(read_metrics(path))
    with MetricsLog(path) as log:
        log.append({"iteration": whole})
    assert [row["iteration"] for row in read_metrics(path)] == list(range(whole + 1))


def test_scores(tmp_path):
    with ScoreCache(tmp_path / "scores") as cache:
        cache.put("a 1", [("known", Score(0.5))])
        with small_files(), pytest.raises(RewardError, match="cannot be used: .*ulimit -f"):
            cache.put("a 1", [(f"{number}", Score(0.5, note="x" * 1000)) for number in range(200)])
        assert cache.get("known") == Score(0.5) and cache.get("0") is None
        cache.put("a 1", [("new", Score(1.0))])
    with ScoreCache(tmp_path / "scores") as cache:
        assert cache.get("new") == Score(1.0)


def test_votes(tmp_path):
    path = tmp_path / "votes.jsonl"
    void_vote(path, "first")
    with small_files(path.stat().st_size + 20), pytest.raises(GalleryError, match="not counted"):
        void_vote(path, "second")
    void_vote(path, "third")
    assert [json.loads(line)["voids"] for line in path.read_text().splitlines()] == ["first", "third"]
    assert read_votes(path).unreadable == 0
