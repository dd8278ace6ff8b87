"""`diffrl` commands in processes of their own, several at once, so that peak memory and caches are each one's own.

They are in sessions of their own, so that Ctrl-C comes to us alone. We ask each to stop once, it writes a checkpoint,
and we end after all; a second Ctrl-C ends them at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Lock
from typing import TypeVar

from diffrl.terminal.exits import termination_interrupts

Job = TypeVar("Job")
Result = TypeVar("Result")
STOPPED = 130


def cores() -> int:
    """Return the processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(at_once: int) -> dict[str, str]:
    """Return the environment that gives each of several processes its share of cores; one alone keeps what it has."""
    if at_once == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, cores() // at_once))}


class Processes:
    """Commands under way, and how many there may be."""

    def __init__(self, at_once: int = 1):
        """Start none yet."""
        self.at_once = at_once
        self._live: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._ending = False

    def run(self, arguments: Sequence[str], log: Path) -> int:
        """Run `diffrl` with these arguments, its output appended to a log; its exit code. Any thread may call this."""
        environment: Mapping[str, str] = {**os.environ, **threads_each(self.at_once)}
        with log.open("ab") as output:
            with self._lock:
                if self._ending:
                    return STOPPED
                process = subprocess.Popen(
                    [sys.executable, "-m", "diffrl.cli", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
                self._live.add(process)
            try:
                return process.wait()
            finally:
                with self._lock:
                    self._live.discard(process)

    def each(self, work: Callable[[Job], Result], jobs: Sequence[Job], done: Callable[[Job, Result], None]) -> None:
        """Do the jobs, `at_once` of them at a time, begun in their order; called from the main thread."""
        with termination_interrupts(), ThreadPoolExecutor(self.at_once) as executor:
            waiting = {executor.submit(work, job): job for job in jobs}
            try:
                for finished in as_completed(waiting):
                    done(waiting[finished], finished.result())
            except BaseException:
                for future in waiting:
                    future.cancel()
                self._end()
                raise

    def _end(self) -> None:
        """Ask all to stop, wait for them, and leave none."""
        with self._lock:
            self._ending = True
            live = list(self._live)
        for process in live:
            process.terminate()
        try:
            for process in live:
                process.wait()
        finally:
            for process in live:
                process.kill()
