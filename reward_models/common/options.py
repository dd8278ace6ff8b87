"""The options that several commands share, as dataclasses, and how a command takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

WHAT, REWARDS, RESULTS, SERVE = "What is scored", "Rewards", "Results", "Serve"


def in_panel(panel: str, help_text: str, *names: str, **facts: Any) -> Any:
    """Return an option that `--help` shows in this panel."""
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **facts)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose arguments may be dataclasses, their fields options like any others.

    Args:
        command: takes keyword arguments; where one is annotated with a dataclass, an instance of it is handed in.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    defaults: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            shown |= get_type_hints(groups[name], include_extras=True)
            defaults |= {one.name: _default(one) for one in fields(groups[name])}
        else:
            shown[name], defaults[name] = hints[name], parameter.default

    @wraps(command)
    def run(**options: Any) -> None:
        for name, kind in groups.items():
            options[name] = kind(**{one.name: options.pop(one.name) for one in fields(kind)})
        command(**options)

    run.__annotations__ = shown
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hint)
            for name, hint in shown.items()
        ]
    )
    return run


def _default(option: Field[Any]) -> Any:
    """Return the default of a dataclass's field, as a signature has it: empty where it is required."""
    return inspect.Parameter.empty if option.default is MISSING else option.default


Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PATH]...", help='Images, videos, folders, "patterns/**/*.png", directories of runs.'),
]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Names, module:Scorer, or LABEL=NAME.")]
Reward = Annotated[list[str] | None, in_panel(REWARDS, "A name, module:Scorer, or LABEL=NAME. Several may be given.")]
AsJson = Annotated[bool, in_panel(RESULTS, "Print JSON.", "--json")]


@dataclass(frozen=True)
class RewardOptions:
    """How rewards are made, whichever they are."""

    option: Annotated[list[str] | None, in_panel(REWARDS, "[LABEL.]KEY=VALUE, an option of a reward's. Several.")] = (
        None
    )
    config: Annotated[
        Path | None, in_panel(REWARDS, "YAML with `rewards:` as for training; `score` gives a weighted total too.")
    ] = None
    device: Annotated[
        str | None, in_panel(REWARDS, "auto, cpu, cuda or cuda:1. Default: what --config says, else auto.")
    ] = None
    dtype: Annotated[str | None, in_panel(REWARDS, "float32, bfloat16 or float16, of rewards with weights.")] = None
    batch_size: Annotated[
        int | None, in_panel(REWARDS, "Samples a reward gets at once. Default: of --config, else its own.", min=1)
    ] = None


@dataclass(frozen=True)
class SampleOptions:
    """Which files, and their prompts."""

    prompt: Annotated[str | None, in_panel(WHAT, "The prompt of every image.")] = None
    prompts: Annotated[
        str | None,
        in_panel(
            WHAT,
            "A .txt file, a line an image in sorted order; or a .jsonl, .csv or .parquet of rows with file and prompt.",
        ),
    ] = None
    stage: Annotated[str | None, in_panel(WHAT, "Of runs: only train, eval, ...")] = None
    iteration: Annotated[list[int] | None, in_panel(WHAT, "Of runs: only this iteration. Several may be given.")] = None
    media: Annotated[str | None, in_panel(WHAT, "Only files that are: image or video.")] = None
    limit: Annotated[int | None, in_panel(WHAT, "Only the first files; with --pipeline, prompts.", min=1)] = None


@dataclass(frozen=True)
class ResultOptions:
    """Where scores go, and what becomes of failures."""

    out: Annotated[list[Path] | None, in_panel(RESULTS, "A .jsonl, .csv or .parquet file. Several may be given.")] = (
        None
    )
    plot: Annotated[
        Path | None, in_panel(RESULTS, "A folder, or one .png, .svg or .pdf, for histograms and correlations.")
    ] = None
    strict: Annotated[
        bool, in_panel(RESULTS, "Exit with 3 if any file failed; without it, only if all did.", "--strict")
    ] = False
    as_json: Annotated[bool, in_panel(RESULTS, "Print the summary as JSON.", "--json")] = False
    cache: Annotated[Path | None, in_panel(RESULTS, "Known scores. Default: ~/.cache/diffrl/scores.sqlite.")] = None
    no_cache: Annotated[bool, in_panel(RESULTS, "Look up nothing and keep nothing.", "--no-cache")] = False


@dataclass(frozen=True)
class ServerOptions:
    """Where a reward server listens, to whom, and how much it takes on."""

    host: Annotated[str, in_panel(SERVE, "Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, in_panel(SERVE, "0 takes a free one.", min=0, max=65535)] = 8123
    token: Annotated[str | None, in_panel(SERVE, "What clients must show. Others may see it: better --token-file.")] = (
        None
    )
    token_file: Annotated[Path | None, in_panel(SERVE, "A file that holds the token.")] = None
    allow_anonymous: Annotated[bool, in_panel(SERVE, "No token on an open address.", "--allow-anonymous")] = False
    server_option: Annotated[list[str] | None, in_panel(SERVE, "KEY=VALUE, such as max_body_mb=16. Several.")] = None
