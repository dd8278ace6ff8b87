"""A GPU played by the CPU: whatever stands behind "needs CUDA" runs, with the CPU's numbers.

Within `played_cuda` PyTorch says that there are GPUs, and makes on the CPU what is asked for on one of them; calls that
concern devices and streams are recorded with their thread. Nothing is known so of a GPU's own kernels and rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

MEMORY = 80 * 2**30
CPU = torch.device("cpu")


def on_cpu(value: Any) -> Any:
    """An argument, with the CPU in place of a GPU."""
    named = isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda"))
    return CPU if named and torch.device(value).type == "cuda" else value


class OnCpu(TorchFunctionMode):
    """Within it, in one thread, tensors that are asked for on a GPU are made on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        return func(*map(on_cpu, args), **{key: on_cpu(value) for key, value in (kwargs or {}).items()})


class PlayedStream:
    """A queue of a device, which is always empty."""

    played: PlayedCuda

    def __init__(self, device: Any = None):
        self.device = device

    def synchronize(self) -> None:
        self.played.note("synchronize", self)

    def wait_stream(self, other: PlayedStream) -> None:
        self.played.note("wait_stream", self, other)


@dataclass
class PlayedCuda:
    """GPUs of one kind.

    Attributes:
        calls: (name of the thread, what was called, its arguments), in order.
    """

    count: int = 2
    capability: tuple[int, int] = (9, 0)
    calls: list[tuple[Any, ...]] = field(default_factory=list, repr=False)
    here: threading.local = field(default_factory=threading.local)

    def note(self, name: str, *arguments: Any) -> None:
        self.calls.append((threading.current_thread().name, name, *arguments))

    def of_thread(self, name: str) -> list[tuple[Any, ...]]:
        """What was called in threads whose names begin so."""
        return [call for thread, *call in self.calls if thread.startswith(name)]

    def set_device(self, device: Any) -> None:
        """Choose this thread's GPU; from then on it is played in this thread too."""
        self.note("set_device", device)
        self.here.device = device if isinstance(device, int) else torch.device(device).index or 0
        if not getattr(self.here, "mode", None):
            self.here.mode = OnCpu().__enter__()

    @contextmanager
    def stream(self, stream: PlayedStream) -> Iterator[None]:
        """Work in a queue."""
        before, self.here.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self.here.stream = before

    def current_stream(self, device: Any = None) -> PlayedStream:
        return getattr(self.here, "stream", None) or self.default

    def __post_init__(self) -> None:
        self.default = PlayedStream("default")
        self.default.played = self

    @property
    def functions(self) -> dict[str, Any]:
        """What stands in torch.cuda."""
        random = torch.Generator()
        return {
            "is_available": lambda: True,
            "is_bf16_supported": lambda *_: True,
            "device_count": lambda: self.count,
            "current_device": lambda: getattr(self.here, "device", 0),
            "set_device": self.set_device,
            "get_device_name": lambda *_: "NVIDIA X",
            "get_device_capability": lambda *_: self.capability,
            "get_device_properties": lambda *_: SimpleNamespace(
                name="NVIDIA X", total_memory=MEMORY, major=self.capability[0], minor=self.capability[1]
            ),
            "mem_get_info": lambda *_: (MEMORY, MEMORY),
            "memory_reserved": lambda *_: 0,
            "memory_allocated": lambda *_: 0,
            "max_memory_allocated": lambda *_: 7,
            "reset_peak_memory_stats": lambda *_: None,
            "empty_cache": lambda: None,
            "synchronize": lambda *device: self.note("synchronize", *device),
            "Stream": type("Stream", (PlayedStream,), {"played": self}),
            "stream": self.stream,
            "default_stream": lambda *_: self.default,
            "current_stream": self.current_stream,
            "get_rng_state": lambda *_: random.get_state(),
            "set_rng_state": lambda state, *_: random.set_state(state),
            "manual_seed_all": lambda seed: None,
        }


@contextmanager
def played_cuda(count: int = 2, capability: tuple[int, int] = (9, 0)) -> Iterator[PlayedCuda]:
    """Within it the CPU plays GPUs.

    Args:
        count: how many.
        capability: their compute capability.
    """
    from accelerate.state import AcceleratorState

    played = PlayedCuda(count, capability)
    with ExitStack() as stack:
        stack.callback(AcceleratorState._reset_state, True)  # accelerate keeps the device for the whole process
        for name, function in played.functions.items():
            stack.enter_context(patch.object(torch.cuda, name, function))
        stack.enter_context(patch.object(torch.version, "cuda", "13.0"))
        AcceleratorState._reset_state(True)
        stack.enter_context(OnCpu())
        played.here.mode = True
        yield played
