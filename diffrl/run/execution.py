"""A training run under way: iterations are taken from the trainer one by one, and what they did is written down."""

from __future__ import annotations

import math
import signal
import time

from diffrl import pulse
from diffrl.config.schema import Config
from diffrl.cost.meter import UNGRADED, IterationCost, network_evaluations
from diffrl.cost.plan import Plan
from diffrl.errors import DiffrlError, ExplorerError, ExplorersGone, SourceError
from diffrl.records import Iteration
from diffrl.run.callbacks import Callbacks
from diffrl.run.changes import kept_config
from diffrl.run.checkpoints import first_image
from diffrl.run.journal import Journal
from diffrl.run.recovery import go_back
from diffrl.run.summary import short_name, shown
from diffrl.terminal.progress import Progress
from diffrl.terminal.signals import Interruption, StopSignal
from diffrl.training.loop import Metrics, Trainer
from diffrl.training.session import Session

NOT_BEGUN = (SourceError, ExplorerError, ExplorersGone)
"""What ends a run before anything of its next iteration is there, so that what was trained can be saved."""


class TrainingRun:
    """Trains to the last iteration, and writes metrics, samples, trees, evaluations and checkpoints on the way.

    Args:
        trainer: trains.
        journal: what is written down.
        progress: what is shown.
        stop: receives the signals; None if nobody does.
        callbacks: are told what happens; None if nobody is.
    """

    def __init__(
        self,
        trainer: Trainer,
        journal: Journal,
        progress: Progress,
        stop: StopSignal | None = None,
        callbacks: Callbacks | None = None,
    ):
        self.trainer, self.config = trainer, trainer.config
        self.journal, self.progress = journal, progress
        self.stop = stop or StopSignal()
        self.callbacks = callbacks or Callbacks()
        self.cost = IterationCost(trainer.clock, self.config.train.gradient_checkpointing)
        self.counts: dict[str, float] = {}

    def run(self) -> None:
        """Train to the last iteration.

        Raises:
            GuardStop: a guard ended the run.
            SourceError: an image to edit cannot be read any more; after a checkpoint if anything was trained.
            ExplorerError: an explorer refuses; likewise.
            ExplorersGone: no explorer draws; likewise.
            Interruption: a signal or a callback ended it, after a checkpoint if anything was trained.
            Exception: whatever a callback raised, after a checkpoint likewise.
        """
        trainer = self.trainer
        with self.stop.finishing():
            if trainer.iteration == 0 and self.journal.saved is None:
                row: Metrics = {"iteration": 0, **self.evaluate(), "cost/evaluations": 0, "cost/seconds": 0.0}
                row |= self._answer(row)
                self.journal.metrics(row)
                self.callbacks.evaluation(0, self._scores(row))
                if self.config.guards.recover:
                    self.save()
            stop = self._asked_to_stop()
            self.callbacks.raise_failure()
            if stop:
                raise stop
            self.cost.begin(trainer.counts())
            try:
                self._iterate()
            except NOT_BEGUN as error:
                if trainer.iteration > (self.journal.saved or 0):
                    self.save()
                raise type(error)(f"{error} {self.stop.kept()}") from error
            finally:
                trainer.sampling.forget()
            self.counts = trainer.counts()

    def _iterate(self) -> None:
        """Take all iterations that are left."""
        trainer, run = self.trainer, self.config.run
        begun = time.monotonic()
        self._begin_iteration()
        for done in trainer.iterations():
            self.write(done)
            del done  # or its samples would be in memory beside the next ones
            stop, last = self._asked_to_stop(), trainer.iteration == run.iterations
            if stop or last or trainer.iteration % run.checkpoint_every == 0:
                self.save()
            self.callbacks.raise_failure()
            if stop and not last:
                raise stop
            self.stop.longest = max(self.stop.longest, time.monotonic() - begun)
            begun = time.monotonic()
            self._begin_iteration()

    def _begin_iteration(self) -> None:
        """Show how far the next one is."""
        title = f"iteration {self.trainer.iteration + 1}"
        pulse.begin(title, iteration_totals(self.trainer.session.plan, self.config))

    def _asked_to_stop(self) -> Interruption | None:
        """Return why the run is to end here, whichever rank was asked; None if none was."""
        ranks = self.trainer.ranks
        if ranks.any(self.stop.received):
            self.stop.answer()
            return Interruption(self.stop.number or signal.SIGTERM)
        return Interruption(None) if self.callbacks and ranks.any(self.callbacks.stop) else None

    def write(self, done: Iteration) -> None:
        """Write an iteration down, evaluate if it is time to, and end the run where a guard says so."""
        trainer = self.trainer
        self.journal.require_place()
        self.journal.train_samples(done.number - 1, done.samples, done.credit)
        self._write_trees(done)
        cost, seconds, wall = self.cost.take(trainer.counts())
        metrics: Metrics = {**done.metrics, **cost}
        if self.config.run.evaluates_after(done.number):
            metrics |= self.evaluate()
        self.cost.begin(counts := trainer.counts())
        row = {
            "iteration": done.number,
            **metrics,
            "network_evaluations": network_evaluations(counts),
            "peak_memory_bytes": trainer.peak_memory(),
            **seconds,
        }
        if self.config.run.evaluates_after(done.number):
            row |= self._answer(row)
        self.journal.metrics(row)
        name, value = shown(metrics)
        self.progress.iteration(done.number, math.nan if value is None else value, wall, name)
        self.callbacks.iteration(done.number, row)
        if self.config.run.evaluates_after(done.number):
            self.callbacks.evaluation(done.number, self._scores(row))
        trainer.hacking.check()
        trainer.guard.check_learning()

    def _answer(self, row: Metrics) -> Metrics:
        """Go back to the newest healthy checkpoint if an evaluation raised an alarm, or act as the guard says.

        Returns:
            What the row is to say of it.
        """
        trainer, hacking = self.trainer, self.trainer.hacking
        if hacking.alarm is None:
            return {}
        if self.config.track.pictures_per_evaluation and trainer.iteration:
            run = self.journal.run_dir
            before, now = (first_image(run, at).relative_to(run) for at in (0, trainer.iteration))
            hacking.alarm = f"{hacking.alarm} Compare the run's {before} with {now}."
        last = trainer.iteration == self.config.run.iterations  # nothing would be trained on from there
        back = go_back(trainer, self.journal.run_dir, row) if hacking.recovers and not last else None
        if back is None:
            hacking.act()
            return {}
        left = hacking.recoveries - hacking.state.recoveries
        trainer.messages.report(
            f"{hacking.alarm} The run goes on from iteration {back}, the newest healthy checkpoint, at a learning rate "
            f"of {trainer.updater.learning_rate():.2g}. (guards.recover; {left} left)"
        )
        return {"sentinel/back_to": back}

    def _write_trees(self, done: Iteration) -> None:
        """Keep the iteration's trees. That one cannot be kept ends nothing: nobody trains on it."""
        if not done.trees:  # most iterations keep none
            return
        try:
            with self.trainer.clock("trees"):
                self.journal.trees(done.trees)
        except DiffrlError as error:
            self.trainer.trees.writes = False
            self.trainer.messages.report_own(
                f"{error} No more trees are kept until the run is resumed; training goes on."
            )

    def evaluate(self) -> Metrics:
        """Evaluate, keep some samples, show the result."""
        pulse.begin("held-out", evaluation_totals(self.trainer.session.plan, self.config))
        evaluation, iteration = self.trainer.evaluate(), self.trainer.iteration
        self.journal.eval_samples(iteration, evaluation)
        means = {name: evaluation.means.get(name, math.nan) for name in (r.key for r in self.config.eval.rewards)}
        self.progress.held_out(iteration, "  ".join(f"{short_name(n)} {v:.3f}" for n, v in means.items()))
        compared = self.trainer.compare(evaluation)
        unknown = {f"held_out/{reward.key}": math.nan for reward in self.config.eval.rewards}
        held_out = {f"held_out/{name}": value for name, value in evaluation.means.items()}
        halves = {name: one.half_width for name, one in evaluation.estimates.items() if name in means}
        intervals = {f"held_out_interval/{name}": half for name, half in halves.items() if half is not None}
        pairs = {f"pairs/{name}": value for name, value in evaluation.pairs.items()}
        return {**unknown, **held_out, **intervals, **pairs, **compared}

    def _scores(self, row: Metrics) -> Metrics:
        """Return the means of an evaluation's rewards, by their names."""
        return {reward.key: row[f"held_out/{reward.key}"] for reward in self.config.eval.rewards}

    def save(self) -> None:
        """Write a checkpoint of everything that the next iteration depends on."""
        trainer = self.trainer
        with trainer.clock("checkpoint"):
            session = trainer.session
            kept = {"inputs": session.inputs, "input_changes": session.input_changes}
            state = {**trainer.state(), "config": kept_config(self.config), **kept}
            self.journal.checkpoint(trainer.iteration, session, trainer.updater.averages, state)


def start_line(session: Session) -> str:
    """Return the model, what is trained of it, the samples of an iteration, the machine and the precision."""
    c, ranks = session.config, session.ranks.world
    trained = sum(p.numel() for p in session.policy.parameters.values())
    lora = "all of the transformer" if c.model.lora is None else f"a LoRA of rank {c.model.lora.rank}"
    each = session.plan.samples // session.plan.groups
    return (
        f"{c.model.path} ({c.model.family}): {trained:,} parameters trained, {lora}. An iteration has "
        f"{session.plan.groups} prompts x {each} samples. On {session.device}{f' x {ranks}' * (ranks > 1)} in "
        f"{c.model.dtype}."
    )


def iteration_totals(plan: Plan, config: Config) -> dict[str, int]:
    """Return what one process does in an iteration, on average, as `diffrl.pulse` counts it."""
    shares = plan.iterations * plan.world_size
    asked = {name: plan.velocities[name] // shares for name in (*UNGRADED, "update")}
    asked["rollout"] += asked.pop("audit")
    sampling = ("explore", "rollout", "values", "old")
    updates = sum(count for name, count in asked.items() if name not in sampling)
    held_out = plan.evaluations * config.eval.samples
    return {
        **{name: asked[name] for name in sampling},
        "update": updates,
        pulse.DECODED: (plan.decodes - held_out) // shares,
        pulse.SCORED: (plan.reward_calls - held_out * len(config.eval.rewards)) // shares,
    }


def evaluation_totals(plan: Plan, config: Config) -> dict[str, int]:
    """Return the same of a held-out evaluation."""
    samples = config.eval.samples // plan.world_size
    return {
        "evaluation": samples * config.eval.steps,
        pulse.DECODED: samples,
        pulse.SCORED: samples * len(config.eval.rewards),
    }
