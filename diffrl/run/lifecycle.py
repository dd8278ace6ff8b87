"""A run from its first line to its last: start, resume, finish."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from diffrl.checkpoint.files import Checkpoint
from diffrl.checkpoint.state import restore_optimizer, restore_rng, seed_rng
from diffrl.config import Config
from diffrl.errors import DiffrlError, GuardStop
from diffrl.files import write_json
from diffrl.precision.facts import PrecisionReport
from diffrl.run import finishing
from diffrl.run.beginning import start_line
from diffrl.run.callbacks import Callback, Callbacks
from diffrl.run.directory import (
    create_run_dir,
    environment,
    locked,
    new_run_dir,
    note_resumption,
    note_rewards,
    open_run_dir,
    rewards_record,
    write_config,
)
from diffrl.run.ending import again, broken_peer, ends_in_words, no_stranger_exits, peer_gone, what_is_kept
from diffrl.run.execution import TrainingRun
from diffrl.run.fit import require_fit
from diffrl.run.initial import origin, pin_initial, restore_initial
from diffrl.run.inputs import (
    MEASURED_WITH,
    TRAINED_WITH,
    changed_inputs,
    require_alike_on_ranks,
    require_inputs,
)
from diffrl.run.journal import Journal, random_group
from diffrl.run.kept_config import changes_since
from diffrl.run.longer import changed_config, complete_words, is_complete, rate_words, set_ending_aside
from diffrl.run.opened import Run
from diffrl.run.resume import find_checkpoint, lost_history, make_room, set_aside
from diffrl.terminal.progress import Progress
from diffrl.terminal.signals import AtOnce, Ended, Interruption, StopSignal
from diffrl.terminal.watch import watched
from diffrl.tracking.endings import FAILED, RESUMED, STOPPED
from diffrl.tracking.metrics import read_metrics
from diffrl.training.loop import Trainer
from diffrl.training.messages import Messages
from diffrl.training.session import Session, open_session


def train(
    config: Config,
    console: Console,
    callbacks: Sequence[Callback] = (),
    *,
    accept_changed_inputs: bool = False,
    owns_process: bool = True,
) -> Path:
    """Start a run and see it through.

    Args:
        config: of the run.
        console: where to show.
        callbacks: are told what happens.
        accept_changed_inputs: begin with the weights of model.init_from also on another base than they were trained on.
        owns_process: see `StopSignal`.

    Returns:
        The run's directory.

    Raises:
        DiffrlError: anything the user can mend, before anything is written.
        GuardStop: a guard ended the run.
        SystemExit: a signal ended it, after a checkpoint.
    """
    run_dir, config = new_run_dir(config), pin_initial(config)
    stop = StopSignal(owns_process)
    with ends_in_words(stop, _printer(console)), stop.watched():
        session = _open(config, run_dir, console)
        require_alike_on_ranks(session)
        _begin(session, accept_changed_inputs)
        with _one_trainer(session, run_dir):
            if session.ranks.is_main:
                new_run_dir(config)  # again, now that nobody else can take it
                create_run_dir(run_dir, config, _environment(session) | origin(config), _rewards(session))
            session.ranks.wait()
            _see_through(session, run_dir, None, console, stop, callbacks)
    return run_dir


def resume(
    path: str | Path,
    console: Console,
    from_start: bool = False,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    *,
    accept_changed_inputs: bool = False,
    owns_process: bool = True,
) -> Path:
    """Go on with a run from its newest whole checkpoint, as if it had never stopped. Of one that is complete, say so.

    Args:
        path: the run.
        console: where to show.
        from_start: begin anew; what the run holds is set aside.
        overrides: as for `load_config`, of keys that may change: more iterations (run.iterations), and see
            `may_change`. They are the run's own from here on.
        callbacks: are told what happens.
        accept_changed_inputs: go on also with other prompts, base or rewards than the run was trained with.
        owns_process: see `StopSignal`.

    Raises:
        DiffrlError: no run there, none of its checkpoints can be used, or configuration or inputs are others now.
    """
    run_dir, before = open_run_dir(path)
    config = changed_config(run_dir, before, overrides, from_start)
    if not from_start and is_complete(run_dir, config):
        with locked(run_dir) if _first_rank() else nullcontext():  # or somebody is at it
            _printer(console)(complete_words(run_dir, config.run.iterations))
            return run_dir
    stop = StopSignal(owns_process)
    with ends_in_words(stop, _printer(console)), stop.watched():
        session = _open(config, run_dir, console, resumes=True)
        with _one_trainer(session, run_dir):
            require_alike_on_ranks(session)
            accept = accept_changed_inputs
            _go_on(session, run_dir, console, stop, from_start, callbacks, overridden=config != before, accept=accept)
    return run_dir


def _go_on(
    session: Session,
    run_dir: Path,
    console: Console,
    stop: StopSignal,
    from_start: bool,
    callbacks: Sequence[Callback],
    *,
    overridden: bool,
    accept: bool,
) -> None:
    config, notes, checkpoint = session.config, list[str](), None
    changed: dict[str, tuple[Any, Any]] = {}
    if not from_start:
        checkpoint = find_checkpoint(run_dir, config, partial(require_fit, session), notes.append)
        if checkpoint is None:
            notes.append("The run was ended before its first checkpoint: it starts again from the beginning.")
        else:
            notes.append(f"Resuming {run_dir} from iteration {checkpoint.step} of {config.run.iterations}.")
            changed = changes_since(checkpoint.state.get("config"), config)
            session.notes = [*session.notes, *filter(None, [rate_words(config, checkpoint)])]
            then = checkpoint.state.get("inputs")
            notes += require_inputs(then, session.inputs, accept, str(run_dir), TRAINED_WITH)
            others = changed_inputs(then, session.inputs, (*TRAINED_WITH, *MEASURED_WITH))
            session.input_changes = [(at, names) for at, names in checkpoint.state.get("input_changes", [])]
            session.input_changes += [(checkpoint.step, list(others))] if others else []
            changed |= others
    if checkpoint is None:
        _begin(session, accept)
    session.ranks.wait()  # nothing is moved before all have looked
    if session.ranks.is_main:
        notes += lost_history(run_dir, checkpoint.step) if checkpoint else []
        otherwise = (overridden and "run.iterations" in changed) or bool(changed.keys() & session.inputs.keys())
        notes += set_aside(run_dir) if from_start else make_room(run_dir, checkpoint, otherwise)
        if overridden:
            write_config(run_dir, config)
        notes += set_ending_aside(run_dir, config.run.iterations)
        step = checkpoint.step if checkpoint else 0
        for message in notes + note_resumption(run_dir, _environment(session), step, changed):
            console.print(message, highlight=False, markup=False)
        note_rewards(run_dir, _rewards(session))
    session.ranks.wait()
    _see_through(session, run_dir, checkpoint, console, stop, callbacks)


def _open(config: Config, run_dir: Path, console: Console, resumes: bool = False) -> Session:
    """Load everything; who waits for it on the first rank is told so."""
    if not _first_rank():
        return open_session(config, run_dir, resumes)
    if not console.is_terminal:
        _printer(console)(f"Loading {config.model.path}.")
    with watched(console, f"loading {config.model.path}"):
        return open_session(config, run_dir, resumes)


def _begin(session: Session, accept: bool) -> None:
    """Put the weights that the run begins with into the policy, where these are not its pipeline's own."""
    begun = restore_initial(session.policy, session.config, session.inputs, accept)
    session.notes = [*session.notes, *begun]


def _first_rank() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def _printer(console: Console) -> Callable[[str], None]:
    """Prints to the user of the first rank."""
    return partial(console.print, highlight=False, markup=False, soft_wrap=True) if _first_rank() else lambda line: None


def _one_trainer(session: Session, run_dir: Path) -> AbstractContextManager[None]:
    """The lock on the run, which the first rank holds for all."""
    return locked(run_dir) if session.ranks.is_main else nullcontext()


def _environment(session: Session) -> dict[str, Any]:
    made = environment(session.device, session.config.model.dtype, session.ranks.world)
    return made | ({"prompts": list(session.prompt_notes)} if session.prompt_notes else {})


def _rewards(session: Session) -> dict[str, Any]:
    return rewards_record(session.scorers, session.eval_scorers)


def _see_through(
    session: Session,
    run_dir: Path,
    checkpoint: Checkpoint | None,
    console: Console,
    stop: StopSignal,
    callbacks: Sequence[Callback],
) -> None:
    main, iterations = session.ranks.is_main, session.config.run.iterations
    told, opened = Callbacks(callbacks, main), Run(run_dir, session.config)
    with Progress(console, iterations, quiet=not main) as progress:
        if session.copy is not None and main:
            write_json(run_dir / "precision.json", asdict(session.copy.report))
            progress.message(describe(session.copy.report))
        saved = None if checkpoint is None else checkpoint.step
        journal = Journal(run_dir, session.config, session.ranks, progress.message, saved)
        stop.processes, stop.speaks, stop.log = session.ranks.world, main, journal.log
        progress.log = journal.log
        stop.kept = lambda: what_is_kept(run_dir, journal.saved, iterations)
        messages = Messages([progress.message, journal.log], main)
        trainer = Trainer(session, messages)
        run = TrainingRun(trainer, journal, progress, stop, told)
        goes_on = (run_dir / "log.txt").exists()
        if main:
            progress.message(start_line(session))
        for note in session.notes:
            messages.report(note)
        seed_rng(session.config.run.seed)
        journal.rewind(-1 if checkpoint is None else checkpoint.step)
        if goes_on:
            journal.log(f"{RESUMED}{checkpoint.step if checkpoint else 0}.")
        if checkpoint is not None:
            restore(trainer, checkpoint)
            if main:
                rows = read_metrics(run_dir / "metrics.jsonl")
                progress.resume(trainer.iteration, [r["reward/mean"] for r in rows if r.get("reward/mean") is not None])
        try:
            with no_stranger_exits():
                told.start(opened)
                run.run()
        except Interruption as end:
            _report_interruption(run, end)
            finishing.leave_report(run)
            told.end(opened)
            if end.number is None:
                return
            raise Ended(128 + end.number) from end
        except Exception as error:
            failure = peer_gone(stop.kept()) if broken_peer(error, stop.processes) else error
            _log_failure(journal, failure)
            finishing.leave_report(run)
            if failure is not error:
                raise failure from error
            raise
        except BaseException as error:
            if not isinstance(error, AtOnce):  # which is reported where it ends
                _log_failure(journal, error)
            raise
        finally:
            _close(journal)
    with stop.finishing():
        if main:
            with watched(console, "summary and images"):
                finishing.finish(run, console)
        session.ranks.wait()
    if stop.received:
        messages.report(f"{stop.name} came when everything was trained: the run is complete.")
    told.end(opened)
    if trainer.guard.verdict:
        raise GuardStop(trainer.guard.verdict)


def _report_interruption(run: TrainingRun, end: Interruption) -> None:
    name = "A callback asked the run to stop" if end.number is None else signal.Signals(end.number).name
    trainer, journal = run.trainer, run.journal
    if journal.saved == trainer.iteration:
        trainer.messages.report(
            f"{name}: checkpoint written after iteration {trainer.iteration}. Go on with: {again(journal.run_dir)}"
        )
    else:
        trainer.messages.report(f"{name}: nothing was trained yet. {run.stop.kept()}")


def _log_failure(journal: Journal, error: BaseException) -> None:
    mark = STOPPED if isinstance(error, GuardStop) else f"{FAILED}{type(error).__name__}: "
    journal.log(f"{mark}{' '.join(str(error).split())}")


def _close(journal: Journal) -> None:
    """Close it; where an error is on its way already, that is the one to hear of."""
    on_its_way = sys.exc_info()[1]
    try:
        journal.close()
    except DiffrlError as error:
        if on_its_way is None:
            raise
        journal.log(str(error))


def describe(report: PrecisionReport) -> str:
    """What explores, in one line; what the user should know of it in further ones."""
    flops = "" if report.flops_quantised is None else f" and {report.flops_quantised:.0%} of the FLOPs"
    lines = [
        f"Exploring in {report.precision} ({report.engine}): {report.parameters_quantised:.0%} of the parameters"
        f"{flops}, multiplied in {report.compute_dtype} with {report.scaling}; the list is in precision.json."
    ]
    if report.batch_dependent:
        lines.append("A candidate's numbers depend a little on the others of its batch: activations share one scale.")
    return "\n".join([*lines, *report.notes])


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Put weights, optimiser, average, generators and counters back, from a checkpoint that `require_fit` let pass."""
    session, tensors, state = trainer.session, checkpoint.tensors, dict(checkpoint.state)
    session.policy.restore(tensors["policy"])
    restore_optimizer(session.optimizer, tensors["optimizer"], state.pop("optimizer"))
    for name, average in trainer.updater.averages.items():
        if average is not None:
            average.restore(tensors[name])
    own = random_group(session.ranks.rank)
    if own in tensors:  # a rank that was not there goes on as it was seeded
        restore_rng(tensors[own], state[own])
    trainer.restore(state)
