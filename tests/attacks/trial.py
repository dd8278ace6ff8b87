"""One trial in a process of its own: bounded in time, memory and file size, and whatever it says is kept."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GIB = 2**30
SECONDS = 60.0
MEMORY = 5 * GIB
"""Bytes of address space that a trial may take beyond what it starts with."""
FILE = 2 * GIB
"""Bytes that a file of a trial's may have."""
MARK = "Traceback (most recent call last)"
LAST_WORDS = 1.0
"""Seconds that a hanging trial has to write where it hangs."""

Send = Callable[[Any], None]


@dataclass(frozen=True)
class Ended:
    """How a trial ended.

    Args:
        output: everything that it wrote, its standard error included.
        messages: what it sent, in order.
        code: of its exit; negative if a signal ended it.
        hangs: whether it had to be killed.
        seconds: that it took.
    """

    output: str
    messages: list[Any] = field(default_factory=list)
    code: int | None = 0
    hangs: bool = False
    seconds: float = 0.0

    def last(self, name: str) -> Any:
        """What came last under a name; None if nothing did. Messages are (name, value)."""
        return next((value for found, value in reversed(self.messages) if found == name), None)


class Trial:
    """A function that runs in a forked process, in a folder; its output goes to a file beside the folder.

    Args:
        function: called as `function(send, *arguments)`; it tells how far it has come by `send((name, value))`.
        folder: its working directory.
        *arguments: of the function.
        memory: bytes of address space beyond those at its start.
    """

    def __init__(self, function: Callable[..., None], folder: Path, *arguments: Any, memory: int = MEMORY) -> None:
        context = multiprocessing.get_context("fork")
        self._receiver, sender = context.Pipe(duplex=False)
        self.said = folder.with_name(f"{folder.name}.output")
        self.process = context.Process(target=_child, args=(function, folder, self.said, sender, memory, arguments))
        self.start = time.monotonic()
        self.process.start()
        sender.close()

    def kill(self) -> None:
        """End it, and whatever it started, as the system does when memory is short: it leads a group of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)

    def ended(self, seconds: float = SECONDS) -> Ended:
        """Wait for its end, and end it after so many seconds since its start."""
        self.process.join(max(0.0, self.start + seconds - time.monotonic()))
        hangs = self.process.is_alive()
        if hangs:
            os.kill(self.process.pid or 0, signal.SIGUSR1)  # faulthandler writes where it stands
            self.process.join(LAST_WORDS)
        self.kill()
        self.process.join()
        messages = []
        with contextlib.suppress(EOFError, OSError):
            while self._receiver.poll():
                messages.append(self._receiver.recv())
        self._receiver.close()
        output = self.said.read_bytes().decode("utf-8", "replace") if self.said.exists() else ""
        return Ended(output, messages, self.process.exitcode, hangs, time.monotonic() - self.start)


def isolated(
    function: Callable[..., None], folder: Path, *arguments: Any, seconds: float = SECONDS, memory: int = MEMORY
) -> Ended:
    """Run a trial to its end, or for so many seconds."""
    return Trial(function, folder, *arguments, memory=memory).ended(seconds)


def command(arguments: list[str]) -> int | str:
    """Run diffrl's command line here; its exit code, or the name of what escaped from it."""
    from diffrl.cli import main

    try:
        main(arguments)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        traceback.print_exc()
        return type(error).__name__
    return 0


def warm() -> None:
    """Import what a training run needs, here and once, so that forked trials need not."""
    logging.disable(logging.WARNING)  # libraries that miss others
    import diffusers
    import matplotlib.figure  # noqa: F401
    import peft  # noqa: F401
    import torch

    import diffrl.cli
    import diffrl.gallery.report
    import diffrl.lifecycle  # noqa: F401

    torch.set_num_threads(1)
    _ = diffusers.StableDiffusion3Pipeline, diffusers.WanPipeline  # they are imported when they are first named
    logging.disable(logging.NOTSET)


def _child(
    function: Callable[..., None], folder: Path, said: Path, sender: Any, memory: int, arguments: tuple[Any, ...]
) -> None:
    os.setsid()
    with said.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(number, "w"), errors="backslashreplace") for number in (1, 2))
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder)
    function(sender.send, *arguments)
    sys.stdout.flush()
    sys.stderr.flush()
