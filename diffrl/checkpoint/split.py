"""Named tensors whose rows lie in several safetensors files, one a rank, read when they are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

PART = re.compile(r"(.+)\.(\d{5})-of-(\d{5})")
"""Name of one rank's file of a group, without its ending: `policy.00000-of-00002`."""


def part_name(group: str, rank: int, world: int) -> str:
    """Name of one rank's file of a group, as `PART` reads it."""
    return f"{group}.{rank:05d}-of-{world:05d}"


class SplitTensors(Mapping[str, Tensor]):
    """Each tensor is its parts, one after the other along the first axis in the order of the files.

    A tensor that was not split is in one file only. Nothing but the files' headers is read before it is asked for.

    Args:
        paths: in the order of the ranks.
    """

    def __init__(self, paths: Sequence[Path]):
        self._parts: dict[str, list[Any]] = {}
        for path in paths:
            file: Any = safe_open(path, framework="pt")
            for name in file.keys():  # noqa: SIM118 - it has no iterator of its own
                self._parts.setdefault(name, []).append(file)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        first, *others = [tuple(file.get_slice(name).get_shape()) for file in self._parts[name]]
        return (sum((shape[0] for shape in others), first[0]), *first[1:]) if others else first

    def dtype(self, name: str) -> str:
        """Return dtype of the tensor, as torch writes it; all of them where its parts differ."""
        scalar = not self.shape(name)
        headers = [file.get_tensor(name) if scalar else file.get_slice(name)[:0] for file in self._parts[name]]
        return " and ".join(sorted({str(header.dtype) for header in headers}))

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Return a whole tensor's rows from `start` to before `stop`; only these are read."""
        pieces, before = [], 0
        for file in self._parts[name]:
            part = file.get_slice(name)
            count = part.get_shape()[0]
            first, last = max(start - before, 0), min(stop - before, count)
            if first < last:
                pieces.append(part[first:last])
            before += count
        return torch.cat(pieces) if pieces else self._parts[name][0].get_tensor(name)[:0]

    def __getitem__(self, name: str) -> Tensor:
        parts = self._parts[name]
        return parts[0].get_tensor(name) if len(parts) == 1 else torch.cat([file.get_tensor(name) for file in parts])

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)
