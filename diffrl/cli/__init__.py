"""The command line. Nothing heavy is imported until a command runs, so `--help` answers at once."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from reward_models.common.own_modules import current_folder, leave_current_folder

if sys.argv[:1] == ["-m"]:  # `python -m diffrl.cli` is being started, and nobody imports this for another purpose
    leave_current_folder()

from diffrl.allocator import set_allocator  # noqa: E402
from diffrl.cli import begin, results, scoring, studies, training  # noqa: E402, F401, I001 - commands in the order of --help
from diffrl.cli.shared import app  # noqa: E402
from reward_models.common.console import make_streams_last, output_required  # noqa: E402

__all__ = ["app", "main"]

AS_OPTION = re.compile(r"--[a-z_]+(\.[a-z0-9_]+)+=.*", re.DOTALL)
LEAVE_FILES = (["train"], ["compare"])
"""Commands whose results are on the disk: what they print may be lost."""


def _override(word: str) -> str:
    """Return an override that was written as an option, --run.name=x, as what it is."""
    return word.removeprefix("--") if AS_OPTION.fullmatch(word) else word


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake of the user's ends in one message and exit code 2, without a traceback."""
    from diffrl.terminal.exits import errors_as_messages

    make_streams_last()
    set_allocator()
    words = [_override(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    with errors_as_messages(), nullcontext() if words[:1] in LEAVE_FILES else output_required():
        current_folder()
        app(args=words)
