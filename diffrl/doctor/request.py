"""What `diffrl doctor` is asked for: its options, without anything heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True)
class DoctorRequest:
    """What to examine, for how long, and where the report goes."""

    out: Annotated[Path, typer.Option(help="Folder for doctor.json and doctor.md; it must be new or empty.")] = Path(
        "doctor"
    )
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--cpu", help="Where to look. Default: the GPU if there is one.")
    ] = None
    minutes: Annotated[float, typer.Option(min=0.1, max=600, help="What takes longer is left out, and says so.")] = 30.0
    only: Annotated[
        list[str] | None,
        typer.Option(help="Ask this section alone: parity, kernels, precisions, life, iterations, speed. Repeatable."),
    ] = None
