"""A run from its first line to its last: opened stage by stage, or resumed, and seen through."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from diffrl.config import Config
from diffrl.cost.host_limits import processes_here
from diffrl.preflight.machine import world_size
from diffrl.preflight.preview import Preview
from diffrl.preflight.stages import open_session, require_look
from diffrl.run.callbacks import Callback
from diffrl.run.changes import changed_config, changes_since, describe_rate
from diffrl.run.completion import run_to_completion
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
from diffrl.run.inputs import (
    MEASURED_WITH,
    TRAINED_WITH,
    changed_inputs,
    require_alike_on_ranks,
    require_inputs,
)
from diffrl.run.resume import describe_complete, find_checkpoint, is_complete, lost_history, require_fit
from diffrl.run.set_aside import make_room, set_aside, set_ending_aside
from diffrl.run.start_weights import origin, restore_initial
from diffrl.terminal.exits import report_exit
from diffrl.terminal.signals import StopSignal
from diffrl.terminal.watch import watched
from diffrl.training.session import Session


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
    stop, run_dir = StopSignal(owns_process), Path(config.run.dir) / config.run.name
    with report_exit(stop, _printer(console)), stop.watched():
        session = _open(config, run_dir, console)
        require_alike_on_ranks(session)
        _begin(session, accept_changed_inputs)
        with _one_trainer(session, run_dir):
            if session.ranks.is_main:
                new_run_dir(config)  # again, now that nobody else can take it
                create_run_dir(
                    run_dir, session.config, _environment(session) | origin(session.config), _rewards(session)
                )
            session.ranks.wait()
            run_to_completion(
                session=session, run_dir=run_dir, checkpoint=None, console=console, stop=stop, callbacks=callbacks
            )
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
            _printer(console)(describe_complete(run_dir, config.run.iterations))
            return run_dir
    stop = StopSignal(owns_process)
    with report_exit(stop, _printer(console)), stop.watched():
        session = _open(config, run_dir, console, resumes=True)
        with _one_trainer(session, run_dir):
            require_alike_on_ranks(session)
            accept = accept_changed_inputs
            _go_on(
                session=session,
                run_dir=run_dir,
                console=console,
                stop=stop,
                from_start=from_start,
                callbacks=callbacks,
                overridden=config != before,
                accept=accept,
            )
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
            session.notes = [*session.notes, *filter(None, [describe_rate(config, checkpoint)])]
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
    run_to_completion(
        session=session, run_dir=run_dir, checkpoint=checkpoint, console=console, stop=stop, callbacks=callbacks
    )


def _open(config: Config, run_dir: Path, console: Console, resumes: bool = False) -> Session:
    """Take the dry half of every stage, then load them; shows that to who waits on the first rank."""
    processes = world_size()
    preview = Preview(config, processes, resumes=resumes, started=processes_here(processes))
    if not _first_rank():
        require_look(preview)
        return open_session(preview, run_dir)
    with watched(console, "checking the configuration"):
        require_look(preview)
    if not console.is_terminal:
        _printer(console)(f"Loading {config.model.path}.")
    with watched(console, f"loading {config.model.path}"):
        return open_session(preview, run_dir)


def _begin(session: Session, accept: bool) -> None:
    """Put the weights that the run begins with into the policy, where these are not its pipeline's own."""
    begun = restore_initial(session.policy, session.config, session.inputs, accept)
    session.notes = [*session.notes, *begun]


def _first_rank() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def _printer(console: Console) -> Callable[[str], None]:
    """Return what prints to the user of the first rank."""
    return partial(console.print, highlight=False, markup=False, soft_wrap=True) if _first_rank() else lambda line: None


def _one_trainer(session: Session, run_dir: Path) -> AbstractContextManager[None]:
    """Return the lock on the run, which the first rank holds for all."""
    return locked(run_dir) if session.ranks.is_main else nullcontext()


def _environment(session: Session) -> dict[str, Any]:
    made = environment(session.device, session.config.model.dtype, session.ranks.world)
    return made | ({"prompts": list(session.prompt_notes)} if session.prompt_notes else {})


def _rewards(session: Session) -> dict[str, Any]:
    return rewards_record(session.scorers, session.eval_scorers)
