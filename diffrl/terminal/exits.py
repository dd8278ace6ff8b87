"""How a command ends when something went wrong: one message, an exit code, and no traceback."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from diffrl.cost.host_limits import address_words
from diffrl.errors import CheckpointError, ConfigError, DiffrlError
from diffrl.terminal.signals import Ended, ImmediateStop, StopSignal
from reward_models.common.errors import RewardError, is_out_of_memory

PATIENCE = 30.0
"""Seconds that a rank other than the first waits with an error before it exits."""

SHARED = (ConfigError, CheckpointError)
"""Errors that all ranks meet alike."""

SPACE = "nothing more can be written{}. Free space, or raise the limit (ulimit -f)"

FILES = "no more files can be open{}. Raise the limit (ulimit -n)"

PROCESSES = "no more threads or processes can be started{}. End others, or raise the limit (ulimit -u)"

SCARCE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), SPACE),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), FILES),
    errno.EAGAIN: PROCESSES,
}
"""What a system may have too little of, by the number of its error."""

INTACT = "What was saved before is intact."

PEER = re.compile(r"gloo|nccl|TCPStore|c10d|process group|ProcessGroup|connection (?:closed|reset)", re.IGNORECASE)
"""What torch says when a process that it exchanges with is gone; it has no class of error for that on every backend."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what Ctrl-C would leave in order is left so."""

    number = signal.SIGTERM


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt as Ctrl-C does until the block ends; Python gives signals to the main thread alone.

    In a forked process it does what it did before.
    """
    owner = os.getpid()

    def stop(number: int, frame: object) -> None:
        if os.getpid() == owner:
            raise Terminated
        signal.signal(number, before)
        signal.raise_signal(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Turn what a user can mend into a message and an exit code; let bugs through.

    Raises:
        SystemExit: in its place.
    """
    rank = int(os.environ.get("RANK", "0"))
    try:
        with termination_interrupts():
            yield
    except (DiffrlError, RewardError) as error:
        _fail(str(error), error.exit_code, rank, shared=isinstance(error, SHARED))
    except (MemoryError, RuntimeError, OSError) as error:
        if is_out_of_memory(error):
            what = "Lower rollout.micro_batch, train.micro_batch, rollout.decode_batch or eval.batch, or train a LoRA."
            _fail(f"Out of memory. {address_words()}{what} {INTACT}", 2, rank)
        if "can't start new thread" in str(error):
            _fail(f"{PROCESSES.format('').capitalize()}. {INTACT}", 2, rank)
        if not isinstance(error, OSError):
            raise
        if error.errno in SCARCE:  # a write does not know of which file
            why = SCARCE[error.errno].format(f" ({error.filename})" if error.filename else "")
            _fail(f"{error.strerror}: {why}. {INTACT}", 2, rank)
        if error.filename is None:  # not about a file: a bug of ours, or of the network
            raise
        _fail(f"{error.strerror}: {error.filename}. Check that it is a place you may write to.", 2, rank)
    except KeyboardInterrupt as error:
        raise SystemExit(128 + getattr(error, "number", signal.SIGINT)) from None


def _fail(message: str, code: int, rank: int, shared: bool = False) -> None:
    """Print one message and exit.

    As soon as one rank exits, the launcher ends the others. So that the first can say what it has to say and write the
    run's report, the others exit later; what all of them meet (`shared`) they tell only if it has not ended by then.
    """
    if rank == 0:
        typer.echo(f"error: {message}", err=True)
    else:
        line = f"error on rank {rank}: {message}"
        if not shared:
            typer.echo(line, err=True)
        time.sleep(PATIENCE)
        if shared:
            typer.echo(line, err=True)
    raise SystemExit(code) from None


@contextmanager
def forbid_sys_exit() -> Iterator[None]:
    """Turn an exit that is not ours into an error, or the command would end as if all was done.

    Raises:
        DiffrlError: in its place.
    """
    try:
        yield
    except (Ended, ImmediateStop):
        raise
    except (SystemExit, KeyboardInterrupt) as error:
        code = f"({error.code!r})" if isinstance(error, SystemExit) else ""
        raise DiffrlError(
            f"A reward, a plug-in or a library ended the program by {type(error).__name__}{code}, in the middle of the "
            "run. What fails raises an exception instead; a reward reports a sample that it cannot score."
        ) from error


@contextmanager
def report_exit(stop: StopSignal, say: Callable[[str], None]) -> Iterator[None]:
    """Report what became of a run where a signal ends it at once.

    Raises:
        DiffrlError: an exit that is not ours.
        Ended: a signal ended it at once.
    """
    try:
        with forbid_sys_exit():
            yield
    except ImmediateStop as end:
        line = f"{signal.Signals(end.number).name}: the run ends at once. {stop.kept()}"
        stop.log(line)
        say(line)
        raise Ended(128 + end.number) from None


def broken_peer(error: BaseException, processes: int) -> bool:
    """Return whether an error says that another process of the run is gone."""
    if processes == 1 or isinstance(error, DiffrlError):
        return False
    from torch.distributed import DistError

    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and PEER.search(str(error)) is not None)


def peer_gone(kept: str) -> DiffrlError:
    """Return the error of a process that is left alone."""
    return DiffrlError(
        "Another process of this run has ended or no longer answers, and this one cannot go on without it. Why is said "
        "above, by that process or by the launcher; no message of its own means that it was killed, often by lack of "
        f"memory. {kept}"
    )
