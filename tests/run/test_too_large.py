"""Files of a run that have grown out of all proportion: each reader says so, and none takes them into the memory."""

from __future__ import annotations

import json
import os
import resource

import pytest

from diffrl.checkpoint.files import load_checkpoint
from diffrl.errors import DiffrlError
from diffrl.gallery.progress import first_rewards, how_it_ended, log_messages, read_rows
from diffrl.gallery.runs import RunSource
from diffrl.gallery.series import track_of
from diffrl.gallery.votes import read_votes
from diffrl.run.directory import _read_environment, read_summary
from diffrl.run.resume import newest_known
from diffrl.studies.compare.archive import unpack
from diffrl.studies.compare.reported import read_rows as read_evaluations
from diffrl.studies.compare.stored import Summary, read_stored
from diffrl.tracking.health import _rewards
from diffrl.tracking.metrics import MetricsLog, parse_row, read_metrics
from diffrl.trees.read import read_tree

SIZE = 3 * 10**9
TREE = "trees/000001-0/tree.json"
REFUSED = {
    "metrics.jsonl read whole": ("metrics.jsonl", lambda run: read_metrics(run / "metrics.jsonl")),
    "metrics.jsonl cut": ("metrics.jsonl", lambda run: MetricsLog(run / "metrics.jsonl").truncate_after(1)),
    "metrics.jsonl in the gallery": ("metrics.jsonl", lambda run: read_rows(run / "metrics.jsonl")),
    "summary.json in the gallery": ("summary.json", lambda run: RunSource("r", run).read_json("summary.json")),
    "log.txt in the gallery": ("log.txt", lambda run: log_messages(RunSource("r", run))),
    "votes.jsonl": ("votes.jsonl", lambda run: read_votes(run / "votes.jsonl")),
    "evaluations.jsonl": ("evaluations.jsonl", lambda run: read_evaluations(run / "evaluations.jsonl")),
    "study.json": ("study.json", lambda run: read_stored(run / "study.json", Summary)),
    "archive": ("archive.jsonl", lambda run: unpack(run / "archive.jsonl", run / "new")),
    "tree": (TREE, lambda run: read_tree(run, 1, 0)),
    "manifest": ("manifest.json", load_checkpoint),
}
UNKNOWN = {
    "metrics.jsonl's rewards": ("metrics.jsonl", lambda run: first_rewards(RunSource("r", run)), []),
    "log.txt's end": ("log.txt", lambda run: how_it_ended(RunSource("r", run)), ""),
    "rewards.json": ("rewards.json", _rewards, {}),
    "environment.json": ("environment.json", lambda run: _read_environment(run / "environment.json"), None),
    "summary.json": ("summary.json", read_summary, {}),
    "checkpoints.json": ("checkpoints.json", newest_known, None),
}


@pytest.fixture(autouse=True)
def little_memory():
    """Two GiB of addresses beyond those in use: a file read whole does not fit."""
    own = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * 2**30, own[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, own)


def large(run, name):
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).touch()
    os.truncate(run / name, SIZE)


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_of_gigabytes_is_refused_in_a_sentence(tmp_path, name):
    file, read = REFUSED[name]
    large(tmp_path, file)
    with pytest.raises(DiffrlError, match=rf"{os.path.basename(file)}.*(too large|cannot be read)"):
        read(tmp_path)
    assert (tmp_path / file).stat().st_size == SIZE


@pytest.mark.parametrize("name", UNKNOWN)
def test_one_that_need_not_be_there_counts_as_damaged(tmp_path, name):
    file, read, nothing = UNKNOWN[name]
    large(tmp_path, file)
    assert read(tmp_path) == nothing


def test_the_gallery_reads_a_run_on_within_the_same_bound(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1, "loss": 2.0}\n')
    run = RunSource("r", tmp_path)
    assert track_of(run).count == 1
    os.truncate(tmp_path / "metrics.jsonl", SIZE)
    assert "too large" in track_of(run).problem


def test_a_line_of_megabytes_is_no_row():
    assert parse_row(json.dumps({"iteration": 1}).encode() + b" " * 2**20) is not None
    assert parse_row(json.dumps({"iteration": 1}).encode() + b" " * 2**22) is None
