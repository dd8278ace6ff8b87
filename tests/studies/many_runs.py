"""Several runs one after the other in the same ranks: imports, and the ranks' meeting, are paid once.

Each argument is a configuration to start, or the folder of a run to resume.
"""

import io
import sys
from pathlib import Path

from rich.console import Console

from diffrl.config import load_config
from diffrl.lifecycle import resume, train

if __name__ == "__main__":
    for argument in map(Path, sys.argv[1:]):
        console = Console(file=io.StringIO(), width=400)
        if argument.is_dir():
            resume(argument, console)
        else:
            train(load_config(argument), console)
