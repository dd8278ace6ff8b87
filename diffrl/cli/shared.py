"""What commands share: the application that they belong to, arguments, helpers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from diffrl import __version__
from reward_models.cli import quiet_libraries

if TYPE_CHECKING:
    from diffrl.config import Config

RULES = {
    "greater_than_equal": "it must be >= {ge:g}",
    "less_than_equal": "it must be <= {le:g}",
    "int_parsing": "it must be a whole number",
    "float_parsing": "it must be a number",
}
"""Rules of options by the kind of error that pydantic gives, by which newer typers read values."""


class Commands(TyperGroup):
    """The commands; of an option's wrong value they tell what it was."""

    def invoke(self, ctx: Any) -> Any:
        """Run one."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            problems = getattr(error.__cause__, "errors", list)()  # older typers tell the value themselves
            if problems:
                rule = RULES.get(problems[0]["type"], problems[0]["msg"]).format(**problems[0].get("ctx", {}))
                error.message = f"{rule}. Got {problems[0]['input']}."
            raise


app = typer.Typer(
    name="diffrl",
    cls=Commands,
    help="Align flow-matching image and video generators with online reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigArgument = Annotated[Path, typer.Argument(help="A YAML configuration, such as configs/quickstart.yaml.")]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[A.B=C]...", help="Values that replace those of the file.")
]
ProcessesOption = Annotated[int, typer.Option(min=1, max=100_000, help="Ranks that will share the work.")]
AcceptOption = Annotated[
    bool,
    typer.Option(
        "--accept-changed-inputs",
        help="Go on although prompts, base or rewards have other contents than those trained with.",
    ),
]
StepOption = Annotated[
    int | None, typer.Option(min=1, help="The run's checkpoint of this iteration. Default: the newest healthy one.")
]
NewestOption = Annotated[bool, typer.Option("--newest", help="The run's newest checkpoint, healthy or not.")]
BestOption = Annotated[
    bool, typer.Option("--best", help="The run's checkpoint with the best first held-out reward, of those evaluated.")
]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"diffrl {__version__}")
        raise typer.Exit


@app.callback()
def diffrl(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Align flow-matching image and video generators with online reinforcement learning."""


def load(config: Path, overrides: Sequence[str] | None) -> Config:
    """Return the configuration of a file, with what the command line replaces in it."""
    from diffrl.config import load_config

    return load_config(config, overrides or [])


def choice(step: int | None, best: bool, newest: bool, run: Path | None, option: str = "--run") -> Any:
    """Return the checkpoint that --step, --best and --newest ask for."""
    from diffrl.run.checkpoints import Choice, require_choice

    chosen = Choice(step, best, newest)
    require_choice(chosen, run, option)
    return chosen


def console() -> Any:
    """Return the terminal."""
    from rich.console import Console

    return Console()


def quiet() -> None:
    """Keep other libraries' progress bars and advice out of ours; errors still come through."""
    import warnings

    warnings.filterwarnings("ignore", message=".*local_dir_use_symlinks.*")
    # Advice to developers at every start, and the hub's retries: what came of them is said in one sentence.
    quiet_libraries("bitsandbytes.backends.cpu.ops", "bitsandbytes.autograd._functions")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
