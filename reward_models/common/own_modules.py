"""Where code is imported from: the current folder only for a module of the user's own that a name asks for.

A command is often started in a folder that somebody else filled, such as a downloaded model. What lies there must not
stand in for a library that some package only tries to import.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from reward_models.common.errors import RewardError


def import_own(name: str) -> ModuleType:
    """Import the module of a "module:Object", from where Python finds modules or else from the current folder.

    If it lies in the current folder, that stays at the end of `sys.path`, for what the module imports when it is used.

    Raises:
        BaseException: whatever importing it raises.
    """
    top = name.partition(".")[0]
    if top not in sys.modules and find_spec(top) is None:
        folder = current_folder()
        if PathFinder.find_spec(top, [folder]) is not None:
            sys.path.append(folder)
    return importlib.import_module(name)


def current_folder() -> str:
    """Return the current folder.

    Raises:
        RewardError: it was removed.
    """
    try:
        return os.getcwd()
    except OSError as error:
        raise RewardError(
            f"A command needs the folder that it is started in. It was removed, or may not be read: {error.strerror}. "
            "Change to another folder (cd)."
        ) from error


def leave_current_folder() -> None:
    """Take the current folder, which `python -m` puts there, from the front of `sys.path`.

    It stays if the program itself lies in it, as where a checkout is used without being installed.
    """
    if sys.path and not sys.flags.safe_path:
        first, program = sys.path[0], str(Path(__file__).parents[1])
        with suppress(OSError):  # it was removed, which `current_folder` says
            if os.path.realpath(first) == os.getcwd() and os.path.realpath(program) != os.getcwd():
                del sys.path[0]
