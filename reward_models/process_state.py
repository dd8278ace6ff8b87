"""What a scorer may not leave changed behind it: settings of torch, numpy, Python and the process that others rely on.

A setting that other threads' tensors depend on is refused, because training may compute beside the scorer; every other
one is put back, and that is said once. Reading all of `SETTINGS` takes well under a tenth of a millisecond.
"""

from __future__ import annotations

import locale
import os
import random
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from reward_models.common.errors import BrokenScorerError, RewardError
from reward_models.common.messages import describe

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


class Setting(NamedTuple):
    """One setting.

    Args:
        title: what the user knows it as.
        read: returns its value, to be compared by `==`; None where there is none yet.
        write: sets a value that `read` returned.
        scope: "thread" if each thread has its own; "numbers" if tensors of all threads depend on it; "random" if it is
            the state of a generator, from which constructors may draw; "process" otherwise.
    """

    title: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    scope: str = "process"


def changed_settings(before: Sequence[Any]) -> list[Setting]:
    """Return the settings that differ from what `read_settings` returned before."""
    return [
        setting
        for setting, then in zip(SETTINGS, before, strict=True)
        if then is not None and not _equal(setting.read(), then)
    ]


def read_settings(scopes: Sequence[str] = ("thread", "numbers", "random", "process")) -> list[Any]:
    """Return the values of all settings, None for those of other scopes."""
    return [setting.read() if setting.scope in scopes else None for setting in SETTINGS]


def put_back(before: Sequence[Any]) -> None:
    """Write the values of before; twice, because inference mode takes gradient mode with it.

    Raises:
        RewardError: one cannot be written, such as a working directory that was removed.
    """
    for _ in range(2):
        for setting, then in zip(SETTINGS, before, strict=True):
            if then is not None and not _equal(setting.read(), then):
                try:
                    setting.write(then)
                except Exception as error:
                    raise RewardError(
                        f"A reward must leave {setting.title} as it was. It cannot be put back: {describe(error)}. "
                        "Mend the reward."
                    ) from error


@contextmanager
def settings_restored() -> Iterator[None]:
    """Restore all settings when the block ends, whatever it changed, without a message."""
    before = read_settings()
    try:
        yield
    finally:
        put_back(before)


@contextmanager
def settings_kept(name: str, scoring: bool = True) -> Iterator[None]:
    """Restore all settings after a scorer's code, and report what it changed.

    In a thread beside the main one only what is the thread's own and what numbers depend on is looked at: the main
    thread may change the rest meanwhile.

    Args:
        name: of the reward, for the message.
        scoring: it scores, so that training may compute beside it, and must draw no global random numbers; False: it
            is imported, made or moved.

    Raises:
        BrokenScorerError: it scored, and has changed what the numbers of other threads depend on.
    """
    scopes = ["thread", "numbers"]
    if threading.current_thread() is threading.main_thread():
        scopes += ["process", "random"] if scoring else ["process"]
    before, failed = read_settings(scopes), True
    try:
        yield
        failed = False
    finally:
        if changed := changed_settings(before):
            put_back(before)
            refused = " and ".join(setting.title for setting in changed if setting.scope == "numbers")
            if refused and scoring and not failed:
                raise BrokenScorerError(
                    f"The reward {name} leaves {refused} changed, on which all numbers of the process depend. A scorer "
                    "must put back what it changes (try: ... finally: ...). Mend it; then check it with: diffrl "
                    f"rewards check {name}."
                )
            _say_once(name, " and ".join(setting.title for setting in changed), scoring)


_said: set[tuple[str, str]] = set()


def _say_once(name: str, titles: str, scoring: bool) -> None:
    if (name, titles) not in _said:
        _said.add((name, titles))
        when = "scored" if scoring else "was loaded"
        warnings.warn(
            f"The reward {name} left {titles} changed when it {when}. They were put back, so nothing else is affected. "
            f"Let it put them back itself; diffrl rewards check {name} lists what it changes.",
            RuntimeWarning,
            stacklevel=5,
        )


def _equal(now: Any, then: Any) -> bool:
    try:
        return bool(now == then)
    except Exception:  # an __eq__ of a stranger's stream or handler
        return False


def _autocast() -> tuple[Any, ...]:
    return tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))


def _set_autocast(values: tuple[Any, ...]) -> None:
    for kind, enabled, dtype in values:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


_guards: list[Any] = []
"""Guards that hold inference mode where it was; it lasts as long as they do."""


def _set_inference_mode(mode: bool) -> None:
    _guards.append(torch.inference_mode(mode))
    _guards[-1].__enter__()


def _set_device(device: Any) -> None:
    torch.set_default_device(None)
    if torch.get_default_device() != device:
        torch.set_default_device(device)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(values: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(values[0], warn_only=values[1])


def _attributes(owner: Any, *names: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return what reads, and what writes, some attributes at once."""

    def write(values: tuple[Any, ...]) -> None:
        for name, value in zip(names, values, strict=True):
            setattr(owner, name, value)

    return lambda: tuple(getattr(owner, name) for name in names), write


def _random() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def _set_random(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _cuda_random() -> list[bytes] | None:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]


def _set_cuda_random(states: list[bytes]) -> None:
    torch.cuda.set_rng_state_all([torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in states])


def _numpy_random() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state()
    return kind, keys.tobytes(), *rest  # type: ignore[union-attr]


def _set_numpy_random(state: tuple[Any, ...]) -> None:
    np.random.set_state((state[0], np.frombuffer(state[1], np.uint32), *state[2:]))


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _handlers() -> tuple[Any, ...]:
    return tuple(map(signal.getsignal, SIGNALS))


def _set_handlers(handlers: tuple[Any, ...]) -> None:
    for number, handler in zip(SIGNALS, handlers, strict=True):
        if handler is not None:  # of C code, which Python cannot install
            signal.signal(number, handler)


SETTINGS = (
    Setting("inference mode", torch.is_inference_mode_enabled, _set_inference_mode, "thread"),  # before gradients
    Setting("gradient mode", torch.is_grad_enabled, torch.set_grad_enabled, "thread"),
    Setting("autocast", _autocast, _set_autocast, "thread"),
    Setting("torch's default device", torch.get_default_device, _set_device, "thread"),
    Setting("numpy's handling of errors", np.geterr, lambda kinds: np.seterr(**kinds), "thread"),
    Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype, "numbers"),
    Setting("torch's deterministic algorithms", _deterministic, _set_deterministic, "numbers"),
    Setting(
        "torch's precision of matrix products",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        "numbers",
    ),
    Setting(
        "the flags of torch.backends.cudnn",
        *_attributes(torch.backends.cudnn, "deterministic", "benchmark", "enabled"),
        "numbers",
    ),
    Setting("torch's global random numbers", _random, _set_random, "random"),
    Setting("CUDA's global random numbers", _cuda_random, _set_cuda_random, "random"),
    Setting("numpy's global random numbers", _numpy_random, _set_numpy_random, "random"),
    Setting("Python's global random numbers", random.getstate, random.setstate, "random"),
    Setting("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    Setting("the working directory", _folder, os.chdir),
    Setting("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda kept: locale.setlocale(locale.LC_ALL, kept)),
    Setting("a handler of signals", _handlers, _set_handlers),
    Setting("sys.stdin, sys.stdout or sys.stderr", *_attributes(sys, "stdin", "stdout", "stderr")),
    Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Setting("the time limit of sockets", lambda: (socket.getdefaulttimeout(),), lambda v: socket.setdefaulttimeout(*v)),
)
