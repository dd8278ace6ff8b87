"""What `diffrl gallery` is asked for: its options, without anything heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True)
class GalleryRequest:
    """What to show, and how."""

    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...", help="Runs, folders of runs, or folders of images. Default: everything in runs/."
        ),
    ] = None
    export: Annotated[Path | None, typer.Option(help="Write a static site here; it must be new or empty.")] = None
    host: Annotated[str, typer.Option(help="Where to listen. 127.0.0.1 is this machine alone.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes any that is free.")] = 8181
    votes: Annotated[Path, typer.Option(help="File that blind votes are added to.")] = Path("votes.jsonl")
    reward: Annotated[
        list[str] | None,
        typer.Option(help="Score folders of images with this, as in diffrl score; may be given several times."),
    ] = None
    browser: Annotated[bool, typer.Option(help="Open the page once it is there.")] = True
