"""Everything a run writes while it goes on; ranks other than the first write nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from diffrl.checkpoint.files import checkpoint_steps, prune_checkpoints, save_checkpoint
from diffrl.checkpoint.shards import save_shards
from diffrl.checkpoint.state import optimizer_tensors, rng_state
from diffrl.config import Config
from diffrl.distributed.ranks import Ranks
from diffrl.errors import DiffrlError, GuardStop, NotHereError, SourceError
from diffrl.files import read_own, write_json
from diffrl.records import Credit, Samples
from diffrl.rollout.tree import sample_paths
from diffrl.run.held_out import pictured, show, stored, totals_at_first
from diffrl.tracking.health import read_health
from diffrl.tracking.index import source_file
from diffrl.tracking.metrics import MetricsLog
from diffrl.tracking.store import SampleStore, StoredSample
from diffrl.training.ema import EMA
from diffrl.training.evaluate import Evaluation
from diffrl.training.session import Session
from diffrl.trees.images import KeptTree
from diffrl.trees.write import drop_trees, keep_source, write_tree
from reward_models.common.messages import describe

CHECKPOINTS, NEWEST = "checkpoints", "checkpoints.json"
"""Where checkpoints lie, and what tells of the newest, so that it is missed if they are gone."""


class Journal:
    """Metrics, samples, messages and checkpoints of one run.

    Args:
        run_dir: the run.
        config: its configuration.
        ranks: holds the trackers that were asked for; knows which rank this is.
        notify: takes what cannot be written down, for the user.
        saved: iteration of the newest checkpoint; None without any.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Config,
        ranks: Ranks,
        notify: Callable[[str], None] = print,
        saved: int | None = None,
    ):
        self.run_dir, self.config, self.saved = run_dir, config, saved
        self._notify = notify
        self._log_failed = False
        self._ranks = ranks
        self._writes = ranks.is_main
        self._fps = config.model.frame_rate or 16.0
        if self._writes:
            self._metrics = MetricsLog(run_dir / "metrics.jsonl")
            self._store = SampleStore(run_dir, fps=self._fps)
        if config.track.tensorboard or config.track.wandb or config.track.others:
            self._start_trackers()

    def _start_trackers(self) -> None:
        wandb, others = self.config.track.wandb, self.config.track.others
        # TensorBoard forgets the steps after the checkpoint, which are trained again; W&B ignores a step that it has.
        kwargs: dict[str, Any] = {"tensorboard": {"purge_step": 0 if self.saved is None else self.saved + 1}, **others}
        if wandb:
            # A resumed run goes on in the same W&B run.
            run_id = json.loads(read_own(self.run_dir / "environment.json"))["run_id"]
            options = {"name": self.config.run.name, "id": run_id, "resume": "allow", "group": wandb.group}
            options |= {"tags": list(wandb.tags)} if wandb.tags else {}
            kwargs["wandb"] = {**options, "entity": wandb.entity, "mode": wandb.mode, "dir": str(self.run_dir)}
        flat = {k: v for k, v in flatten(self.config.model_dump()).items() if isinstance(v, (int, float, str, bool))}
        unnamed = "diffrl" if others else "tensorboard"
        project = wandb.project if wandb else unnamed
        try:
            self._ranks.start_trackers(project, flat, kwargs)
        except Exception as error:  # each library raises its own, for a login, a server or an option
            names = ", ".join(["wandb"] * (wandb is not None) + list(others)) or "tensorboard"
            raise NotHereError(
                f"track must name trackers that can be started here ({names}). One ended with {describe(error)}. "
                f"Log in to it, change its options or leave it out, and go on: diffrl train --resume {self.run_dir}."
            ) from error

    def rewind(self, iteration: int) -> None:
        """Forget what was written after so many iterations, so that resuming neither doubles nor loses a row."""
        if self._writes:
            self._metrics.truncate_after(iteration)
            self._store.truncate_after(iteration, ["eval"])
            self._store.truncate_after(iteration - 1, ["train"])  # iteration i, counted from 0, leads from i to i + 1
            drop_trees(self.run_dir, iteration)

    def log(self, message: str) -> None:
        """Write a line of log.txt. That it cannot be written is reported once and ends nothing."""
        if not self._writes:
            return
        path = self.run_dir / "log.txt"
        try:
            # Without waiting: somebody may have put a pipe there.
            with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666), "wb", 0) as file:
                file.write(f"{message}\n".encode(errors="backslashreplace"))
        except OSError as error:
            if not self._log_failed:
                self._log_failed = True
                self._notify(f"{path} cannot be written: {error.strerror or error}. Its lines are shown here only.")

    def require_place(self) -> None:
        """Refuse to train on where nothing would be left of it; asked every iteration.

        Raises:
            GuardStop: the run's directory was removed, moved or replaced.
        """
        if self._writes and not self._metrics.in_place():
            raise GuardStop(
                f"{self._metrics.path} is no longer the file that this run writes: the run's directory was removed, "
                "moved or replaced while it was training. The run stops, for nothing of it would be kept. If it was "
                "moved, go on with: diffrl train --resume where/it/is/now."
            )

    def metrics(self, row: Mapping[str, float | int]) -> None:
        """Write a row of metrics.jsonl, and of the trackers."""
        if self._writes:
            self._metrics.append(row)
        if self._ranks.trackers:
            values = {name: value for name, value in row.items() if name != "iteration"}
            self._ranks.track(values, int(row["iteration"]))

    def train_samples(self, iteration: int, samples: Samples, credit: Credit) -> None:
        """Write this rank's samples of an iteration, the first of them with their images."""
        if not self._writes:
            return
        table = samples.table
        rewards = _columns({**table.raw, **table.parts})
        totals, used = table.total.tolist(), credit.used.tolist()
        advantages = [value if used[i] else None for i, value in enumerate(credit.outcome.tolist())]
        rollout, forest = samples.rollout, samples.rollout.forest
        roots, paths = forest.sample_root.tolist(), sample_paths(forest)
        kept = self.config.track.pictures_per_iteration
        kept_samples = [
            StoredSample(
                stage="train",
                iteration=iteration,
                group=rollout.batch.groups[p],
                root=roots[i],
                path=paths[i],
                seed=self.config.run.seed,
                prompt=rollout.batch.prompts[p].text,
                metadata=rollout.batch.prompts[p].beside,
                total=totals[i],
                advantage=advantages[i],
                rewards=rewards[i],
                error=table.errors[i],
                notes=table.notes_of(i),
                picture=rollout.images[i] if i < kept else None,
            )
            for i, p in enumerate(forest.sample_prompt.tolist())
        ]
        self.sources(one.metadata for one in kept_samples if one.pictured)
        self._store.write(kept_samples)

    def sources(self, metadata: Iterable[Mapping[str, Any]]) -> None:
        """Write small copies of the images that samples or trees with such metadata are edits of, each once a run."""
        for path, name in {one["source"]: file for one in metadata if (file := source_file(one))}.items():
            try:
                keep_source(path, self.run_dir / name)
            except SourceError as error:  # it is gone since it was encoded: pages show the sample without it
                self.log(f"No copy is kept. {error}")

    def trees(self, trees: Iterable[KeptTree]) -> None:
        """Write trees of this rank's first prompts with their images, one after the other.

        Raises:
            DiffrlError: one cannot be written.
        """
        for tree in trees if self._writes else ():
            self.sources([tree.record.metadata])
            write_tree(self.run_dir, tree.record, tree.images, self._fps * tree.pace)

    def eval_samples(self, iteration: int, evaluation: Evaluation) -> None:
        """Write all samples of a held-out evaluation, some with images (`held_out`); all ranks take part."""
        rows = stored(iteration, evaluation, _columns({**evaluation.table.raw, **evaluation.table.parts}))
        most = self.config.track.pictures_per_evaluation
        before = totals_at_first(self._store, iteration) if self._writes and most else None
        every = pictured(self._ranks, rows, evaluation.images, most, before, self._fps)
        if self._writes:
            self.sources(one.metadata for one in every if one.pictured)
            self._store.write(every)
            show(self._ranks.trackers, every, iteration)

    def checkpoint(
        self, iteration: int, session: Session, averages: Mapping[str, EMA | None], state: Mapping[str, Any]
    ) -> None:
        """Write a checkpoint, after what it stands on is on the disk; all ranks take part."""
        if self._writes:
            self._metrics.sync()
            self._store.sync()
        directory, ranks = self.run_dir / CHECKPOINTS, session.ranks
        optimizer, optimizer_json = optimizer_tensors(session.optimizer)
        generators = ranks.gather_objects(rng_state())
        tensors = {"policy": session.policy.state(), "optimizer": optimizer}
        tensors |= {name: average.average for name, average in averages.items() if average}
        whole = {**state, "optimizer": optimizer_json}
        for rank, (generator, values) in enumerate(generators):
            tensors[random_group(rank)] = generator
            whole[random_group(rank)] = values
        if session.policy.sharded:
            exchange = ranks.gather_objects
            save_shards(directory, iteration, tensors, whole, ranks.rank, exchange)
        elif self._writes:
            save_checkpoint(directory, iteration, tensors, whole)
        self.saved = iteration
        if self._writes:
            write_json(self.run_dir / NEWEST, {"iteration": iteration})
            self._prune(directory)

    def _prune(self, directory: Path) -> None:
        """Delete checkpoints for their age, but neither the newest healthy one nor the best."""
        keep = self.config.run.keep_checkpoints
        if keep is not None:
            steps, reward = checkpoint_steps(directory), self.config.eval.rewards[0].key
            with suppress(DiffrlError):  # somebody has damaged the metrics: nothing is deleted without knowing
                prune_checkpoints(directory, keep, read_health(self.run_dir, reward).worth_keeping(steps))

    def close(self) -> None:
        """Flush and close everything."""
        if self._writes:
            self._metrics.close()
            self._store.close()
        for tracker in self._ranks.trackers:  # not end_training(): it would end the process group on one rank
            tracker.finish()


def random_group(rank: int) -> str:
    """Return what a checkpoint calls a rank's random generators."""
    return "random" if rank == 0 else f"random-{rank:05d}"


def _columns(values: Mapping[str, torch.Tensor]) -> list[dict[str, float]]:
    """Return one mapping a sample from one tensor a name."""
    lists = {name: tensor.tolist() for name, tensor in values.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return flat
