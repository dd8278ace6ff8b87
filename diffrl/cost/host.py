"""Memory of the computer itself that a process takes beside its GPU, estimated before anything is loaded.

A file that holds its numbers in model.dtype is mapped: it takes no memory of a process's own, and all processes of a
machine share it. Numbers in another dtype are converted, in each process's own memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from diffrl.config.model import ModelSettings
from diffrl.cost.repositories import bytes_of_numbers
from diffrl.models.architecture import Architecture, stored_numbers
from diffrl.models.hub import local_folder

DTYPES = {4: "F32", 2: "BF16"}
"""What safetensors calls the dtypes that a pipeline is loaded in, by the bytes of a number."""


@dataclass(frozen=True)
class HostMemory:
    """Estimated bytes of the computer's memory."""

    kept: Mapping[str, int]  # that a process holds throughout, by purpose
    passing: Mapping[str, int]  # that it holds for a while, by stage; one stage runs at a time
    mapped: int = 0  # of files that are mapped, shared by the processes of a machine

    @property
    def each(self) -> int:
        """Bytes of a process: all that is kept, and the largest stage."""
        return sum(self.kept.values()) + max(self.passing.values(), default=0)


def file_weights(model: ModelSettings, architecture: Architecture, target: int) -> tuple[int, int, tuple[str, ...]]:
    """Return what loading a pipeline maps and what it converts.

    Args:
        model: names the pipeline.
        architecture: its sizes.
        target: bytes of a number in model.dtype.

    Returns:
        Bytes of files that are mapped and used as they are; bytes of the weights that are made of all others; what had
        to be assumed.
    """
    folder, known = local_folder(model.path, model.revision), bytes_of_numbers(model.path)
    here = {} if folder is None else stored_numbers(folder)
    mapped = converted = 0
    unknown = []
    for part, shapes in architecture.shapes.items():
        count = sum(map(math.prod, shapes.values()))
        if part in here:
            as_is = here[part].get(DTYPES[target], 0)
        elif known is None:
            as_is = 0
            unknown.append(part)
        else:
            as_is = count if known[part] == target else 0
        mapped, converted = mapped + target * as_is, converted + target * (count - as_is)
    how = f"How {model.path} holds the numbers of {', '.join(unknown)} is not known here: counted as converted."
    return mapped, converted, (how,) if unknown else ()
