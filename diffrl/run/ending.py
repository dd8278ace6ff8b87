"""How a run ends that does not reach its last iteration: always in words, never with exit code 0."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from diffrl.errors import DiffrlError
from diffrl.terminal.signals import AtOnce, Ended, StopSignal

PEER = re.compile(r"gloo|nccl|TCPStore|c10d|process group|ProcessGroup|connection (?:closed|reset)", re.IGNORECASE)
"""What torch says when a process that it exchanges with is gone; it has no class of error for that on every backend."""


@contextmanager
def no_stranger_exits() -> Iterator[None]:
    """An exit that is not ours becomes an error, or the command would end as if all was done.

    Raises:
        DiffrlError: in its place.
    """
    try:
        yield
    except (Ended, AtOnce):
        raise
    except (SystemExit, KeyboardInterrupt) as error:
        code = f"({error.code!r})" if isinstance(error, SystemExit) else ""
        raise DiffrlError(
            f"A reward, a plug-in or a library ended the program by {type(error).__name__}{code}, in the middle of the "
            "run. What fails raises an exception instead; a reward reports a sample that it cannot score."
        ) from error


@contextmanager
def ends_in_words(stop: StopSignal, say: Callable[[str], None]) -> Iterator[None]:
    """Around a whole run: says what became of it where a signal ends it at once.

    Args:
        stop: receives the signals.
        say: tells the user.

    Raises:
        DiffrlError: an exit that is not ours.
        Ended: a signal ended it at once.
    """
    try:
        with no_stranger_exits():
            yield
    except AtOnce as end:
        line = f"{signal.Signals(end.number).name}: the run ends at once. {stop.kept()}"
        stop.log(line)
        say(line)
        raise Ended(128 + end.number) from None


def what_is_kept(run_dir: Path, saved: int | None, iterations: int) -> str:
    """What a run that ends now leaves, and how to go on.

    Args:
        run_dir: the run.
        saved: iteration of its newest checkpoint; None without any.
        iterations: of the whole run.
    """
    if saved is None:
        return f"There is no checkpoint yet, so training starts again, with: {again(run_dir)}"
    if saved == iterations:
        return f"All {iterations} iterations are trained and kept. For what is written at the end: {again(run_dir)}"
    return f"The newest checkpoint is of iteration {saved}. Go on with: {again(run_dir)}"


def again(run_dir: Path) -> str:
    """The command that goes on with a run."""
    return f"diffrl train --resume {run_dir}"


def broken_peer(error: BaseException, processes: int) -> bool:
    """Whether an error says that another process of the run is gone."""
    if processes == 1 or isinstance(error, DiffrlError):
        return False
    from torch.distributed import DistError

    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and PEER.search(str(error)) is not None)


def peer_gone(kept: str) -> DiffrlError:
    """The error of a process that is left alone."""
    return DiffrlError(
        "Another process of this run has ended or no longer answers, and this one cannot go on without it. Why is said "
        "above, by that process or by the launcher; no message of its own means that it was killed, often by lack of "
        f"memory. {kept}"
    )
