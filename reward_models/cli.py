"""The commands `score`, `rewards` and `serve`, of `python -m reward_models` and of diffrl, which generates images too.

Nothing heavy is imported until a command runs, so `--help` answers at once.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from reward_models.common.console import make_streams_last, output_required
from reward_models.common.errors import RewardError
from reward_models.common.messages import quote
from reward_models.common.options import (
    AsJson,
    Names,
    Paths,
    ResultOptions,
    Reward,
    RewardOptions,
    SampleOptions,
    ServerOptions,
    grouped,
)
from reward_models.common.own_modules import current_folder


class _Program(TyperGroup):
    """`python -m reward_models`, which says what it takes to whoever names no command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse what is no command, then read the options."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            raise RewardError(
                f"{ctx.info_name} takes a command: {', '.join(self.commands)}. Got {quote(args[0])}. To score files: "
                f"{ctx.info_name} score PATH --reward NAME."
            )
        return super().parse_args(ctx, args)


def score_files(
    paths: Sequence[str],
    reward: Sequence[str],
    options: RewardOptions,
    samples: SampleOptions,
    results: ResultOptions,
    draw: Callable[[], Sequence[str]] | None = None,
) -> NoReturn:
    """Score and end with the exit code: 0, or 3 if every reward failed for every file, or with --strict any.

    Args:
        paths: files, folders, patterns and directories of runs; at least one.
        reward: names of rewards.
        options: how they are made.
        samples: which of the files, and their prompts.
        results: where scores go.
        draw: draws the images at `paths` once the rewards are there; returns lines for the user.
    """
    if not paths:
        raise RewardError(
            "`score` takes files or folders. Got none. Give PATHs; diffrl score --pipeline generates some."
        )
    quiet_libraries()
    from reward_models.scoring.choices import choose
    from reward_models.scoring.sources import Selection, collect

    selection = Selection(
        paths,
        samples.stage,
        samples.iteration or (),
        samples.prompt,
        Path(samples.prompts) if samples.prompts else None,
        samples.media,
        samples.limit,
    )
    choose(reward, options.option or (), options.config)  # before torch is loaded, and before anything is drawn
    collected = collect(selection) if draw is None else None
    from reward_models.scoring import command

    raise typer.Exit(command.run(selection, collected, reward, options, results, draw))


@grouped
def score(
    *,
    paths: Paths = None,
    reward: Reward = None,
    options: RewardOptions,
    samples: SampleOptions,
    results: ResultOptions,
) -> None:
    """Score images and videos with one or several rewards: table, rows, histograms, correlations.

    python -m reward_models score images/ --prompts prompts.txt --reward pickscore --out scores.jsonl

    Exit code: 0; 2 for a mistake in what was asked; 3 if every reward failed for every file, or with --strict any.
    """
    score_files(paths or (), reward or (), options, samples, results)


rewards_app = typer.Typer(help="List rewards, and check them.", no_args_is_help=True)


@rewards_app.command("list")
def list_rewards(as_json: AsJson = False) -> None:
    """Show all rewards and what they need."""
    quiet_libraries()
    from reward_models.scoring import command

    command.show_list(as_json)


@rewards_app.command("check")
@grouped
def check(*, names: Names = None, options: RewardOptions) -> None:
    """Check that rewards keep the contract of scorers. Exit code: 0, or 3 if one does not."""
    quiet_libraries()
    from reward_models.scoring import command

    raise typer.Exit(command.examine(names or (), options, contract=True))


@rewards_app.command("self-test")
@grouped
def self_test(*, names: Names = None, options: RewardOptions) -> None:
    """Test that rewards tell good from bad, on samples of known order. Exit code: 0, or 3 if one does not."""
    quiet_libraries()
    from reward_models.scoring import command

    raise typer.Exit(command.examine(names or (), options, contract=False))


@grouped
def serve(*, reward: Reward = None, options: RewardOptions, server: ServerOptions) -> None:
    """Serve rewards over HTTP, to `remote` rewards elsewhere, until the process is stopped."""
    quiet_libraries()
    from reward_models.scoring import command

    command.serve_rewards(reward or (), options, server)


def add_commands(app: typer.Typer) -> None:
    """Register `rewards` and `serve`, which are the same here and in diffrl."""
    app.add_typer(rewards_app, name="rewards")
    app.command()(serve)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake of the user's ends in one message and exit code 2, without a traceback."""
    make_streams_last()
    app = typer.Typer(
        cls=_Program,
        help="Score images and videos, look at rewards, serve them.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command()(score)
    add_commands(app)
    try:
        with output_required():
            current_folder()
            app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="python -m reward_models")
    except RewardError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        if error.filename is None:  # not about a file: a bug of ours, or of the network
            raise
        _fail(f"{error.strerror}: {error.filename}. Check that it is a place you may write to.", 2)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def quiet_libraries(*others: str) -> None:
    """Keep other libraries' advice to their developers out of ours; errors still come through.

    Args:
        *others: names of further loggers.
    """
    for name in ("torch.utils._pytree", "huggingface_hub.utils._http", *others):
        logging.getLogger(name).addFilter(_is_error)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _fail(message: str, code: int) -> None:
    typer.echo(f"error: {message}", err=True)
    raise SystemExit(code) from None
