"""Short runs for tests: settings, a run from the command's own entry point, and a trainer in the test's hands."""

import copy
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from rich.console import Console

import diffrl.run.completion as completion
import diffrl.training.update as update
from diffrl.checkpoint.files import load_checkpoint
from diffrl.config.load import dump_config, make_config
from diffrl.lifecycle import resume, train
from diffrl.preflight.preview import Preview
from diffrl.preflight.stages import open_session
from diffrl.run.execution import TrainingRun
from diffrl.run.journal import Journal
from diffrl.terminal.progress import Progress
from diffrl.tracking.metrics import read_metrics
from diffrl.tracking.store import SampleStore
from diffrl.training.loop import Trainer
from diffrl.training.messages import Messages
from diffrl.trees.read import list_trees, read_tree

BRIGHTNESS, GREEN = "tests.training.scorers:Brightness", "tests.training.scorers:Green"
VARYING = re.compile(r"seconds/.*|cost/seconds|peak_memory_bytes")


FOREST = {"stochastic": {"kind": "splits"}, "solver": "ab2", "tree": {"roots": 2, "splits": [0, 2]}}
"""Two trees of four leaves a prompt: 8 samples, 6 origins, 12 edges."""
FUSED = {"reward": "fused", "normalise": "depth"}
TREES = {"trees": {}}
"""What keeps trees, as `track` does by itself: an eighth of a short run's time, so most tests do without."""
EXPLORE = {"precision": "nvfp4", "engine": "emulated", "steps": 4, "candidates": 16, "keep": 8, "audit": 2}


def settings(pipeline, directory, **changes):
    """Two prompts, three samples each, two of five steps trained; sections in `changes` are merged."""
    data = {
        "run": {"name": "run", "dir": str(directory), "seed": 3, "iterations": 2, "checkpoint_every": 2},
        "model": {"family": "sd3", "path": str(pipeline), "device": "cpu"},
        "prompts": {"train": "shapes:train", "eval": "shapes:tune", "per_iteration": 2},
        "rollout": {
            "steps": 5,
            "dynamics": {"kind": "flow_sde", "noise_level": 0.7},
            "stochastic": {"kind": "window", "start": 1, "size": 2},
            "tree": {"roots": 3},
        },
        "rewards": [{"name": BRIGHTNESS}],
        "objective": {"kind": "grpo"},
        "train": {"learning_rate": 1.0e-4, "updates_per_iteration": 2},
        "eval": {"rewards": [{"name": BRIGHTNESS}], "samples": 5, "steps": 3},
        "track": {"pictures_per_iteration": 2, "pictures_per_evaluation": 3, "trees": None},
        # rates of tests ruin models, whose checkpoints are wanted all the same
        "guards": {"reward_hacking": {"held_out_drop": 1e9, "sharpness": 1e9, "diversity": 0.0}},
    }
    for section, values in changes.items():
        data[section] = values if isinstance(values, list) else copy.deepcopy(data.get(section, {})) | values
    return data


def write_config(data, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump_config(make_config(data)), encoding="utf-8")
    return path


@contextmanager
def undrawn() -> Iterator[None]:
    """Inside, runs end without curve.png and report.html, which take longer to draw than the run takes to train."""
    with patch.multiple(completion, write_curve=lambda *args: None, leave_report=lambda *args: False):
        yield


def start(data, drawn=False):
    """Train from the beginning; the run's directory and what the console showed."""
    shown = io.StringIO()
    with nullcontext() if drawn else undrawn():
        return train(make_config(data), Console(file=shown, width=400)), shown.getvalue()


def go_on(run_dir, *overrides, from_start=False, drawn=False):
    """Resume; what the console showed."""
    shown = io.StringIO()
    with nullcontext() if drawn else undrawn():
        resume(run_dir, Console(file=shown, width=400), from_start, overrides)
    return shown.getvalue()


def make_run(data):
    """A trainer before its first iteration, and its run, which writes what it does. Messages gather in `run.shown`."""
    config = make_config(data)
    run_dir = Path(config.run.dir) / config.run.name
    session = open_session(Preview(config), run_dir)
    run_dir.mkdir(parents=True)
    shown = io.StringIO()
    journal, progress = Journal(run_dir, config, session.ranks), Progress(Console(file=shown, width=400), 1)
    messages = Messages([progress.message, journal.log], session.ranks.is_main)
    run = TrainingRun(Trainer(session, messages), journal, progress)
    run.shown = shown
    return run.trainer, run


def make_trainer(data):
    """A trainer before its first iteration."""
    return make_run(data)[0]


def weights_of(trainer):
    return {name: tensor.clone() for name, tensor in trainer.session.policy.state().items()}


def record_gradients(trainer, into):
    step = trainer.session.optimizer.step

    def recorded():
        parameters = trainer.session.policy.parameters
        into.append(flat({name: p.grad.clone() for name, p in parameters.items()}))
        step()

    trainer.session.optimizer.step = recorded


class Spied(NamedTuple):
    """An update: its gradient and loss, those of autograd of a definition, and what it trained on."""

    gradient: torch.Tensor
    expected: torch.Tensor
    loss: float
    wanted: float
    taken: Any


def spy_gradients(monkeypatch, definition):
    """Compare each update that follows with autograd of `definition(term, taken, policy, reference)`, a mean loss."""
    seen, accumulate = [], update.accumulate_gradient

    def spied(ranks, policy, shares, predict, reference, micro_batch):
        ((term, examples, index),) = shares
        taken, names = examples.take(index), list(policy.parameters)
        loss = definition(term, taken, predict[0], reference)
        wanted = torch.autograd.grad(loss, [policy.parameters[name] for name in names], allow_unused=True)
        found = accumulate(ranks, policy, shares, predict, reference, micro_batch)
        kept = {name: gradient for name, gradient in zip(names, wanted, strict=True) if gradient is not None}
        own = flat({name: policy.parameters[name].grad for name in kept})
        seen.append(Spied(own, flat(kept), found.loss, float(loss.detach()), taken))
        return found

    monkeypatch.setattr(update, "accumulate_gradient", spied)
    return seen


def flat(tensors):
    """All tensors of a mapping as one vector, in the order of their names."""
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def distance(one, other):
    """Euclidean distance of two vectors in units of the second's length."""
    return float((one - other).norm() / other.norm())


def rows_of(run_dir):
    """metrics.jsonl without what differs from machine to machine."""
    return [
        {k: v for k, v in row.items() if not VARYING.fullmatch(k)} for row in read_metrics(run_dir / "metrics.jsonl")
    ]


def samples_of(run_dir):
    """Every stored sample with its picture's bytes."""
    with SampleStore.open_readonly(run_dir) as store:
        return [(sample, (run_dir / sample.file).read_bytes() if sample.file else None) for sample in store.read()]


def summary_of(run_dir):
    summary = json.loads((run_dir / "summary.json").read_text())
    return {k: v for k, v in summary.items() if k not in ("seconds", "peak_memory_bytes")}


def last_checkpoint(run_dir):
    """The newest checkpoint, its tensors as bytes, without what differs from machine to machine."""
    found = load_checkpoint(max((run_dir / "checkpoints").glob("step-*")))
    tensors = {
        (group, name): (tensor.dtype, tuple(tensor.shape), tensor.numpy().tobytes())
        for group, named in found.tensors.items()
        for name, tensor in named.items()
    }
    apart = ("seconds", "peak_memory_bytes", "config")  # how often it is saved is part of the configuration
    return found.step, tensors, {k: v for k, v in found.state.items() if k not in apart}


def without(value, names):
    """A value of dicts and lists without the entries of these names."""
    if isinstance(value, dict):
        return {key: without(entry, names) for key, entry in value.items() if key not in names}
    return [without(entry, names) for entry in value] if isinstance(value, list) else value


def assert_same_run(one, other, apart=()):
    """Everything that a run leaves is the same, bit for bit, time and memory and what is named `apart` left out."""
    for read in (rows_of, summary_of):
        assert without(read(one), apart) == without(read(other), apart)
    (*saved, state), (*expected, other_state) = last_checkpoint(one), last_checkpoint(other)
    assert saved == expected and without(state, apart) == without(other_state, apart)
    assert samples_of(one) == samples_of(other)
    assert (one / "before_after.png").read_bytes() == (other / "before_after.png").read_bytes()


def assert_same_trees(run, expected):
    """The trees of a run are those of another up to rounding, the change of every step's density among them."""
    names = set(list_trees(run)) & set(list_trees(expected))  # of several processes, the prompts of the first
    assert {iteration for iteration, _ in names} == {iteration for iteration, _ in list_trees(run)}
    sizes = []
    for name in names:
        tree, wanted = read_tree(run, *name), read_tree(expected, *name)
        assert (tree.prompt, tree.branching, len(tree.nodes)) == (wanted.prompt, wanted.branching, len(wanted.nodes))
        for node, other in zip(tree.nodes, wanted.nodes, strict=True):
            for field in ("value", "credited", "advantage", "log_ratio"):
                ours, theirs = getattr(node, field), getattr(other, field)
                assert (ours is None) == (theirs is None), field
                assert ours is None or ours == pytest.approx(
                    theirs, rel=1e-2, abs=1e-5 if field == "log_ratio" else 1e-3
                )
            assert (node.trained, node.picture, node.parent) == (other.trained, other.picture, other.parent)
            sizes.append(abs(node.log_ratio or 0.0))
        kept, others = ({path.name for path in (path / "trees" / tree.name).iterdir()} for path in (run, expected))
        assert kept == others
    assert max(sizes) > 2e-5
