"""Write down which versions of all packages a fresh machine installs, so that it installs what was tested.

    make constraints      (or: pip install uv && python scripts/make_constraints.py)

`scripts/constraints/tested.txt` has the newest versions that pyproject.toml allows today, for Python 3.11 to 3.13;
`make demo` and `make test` install these and no others. `scripts/constraints/oldest.txt` has pyproject's lower bounds,
for `make test-oldest` with Python 3.11. After running this: `make test`, `make test-oldest`, then commit the files.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "scripts" / "constraints"
OLDEST_PYTHON = "3.11"
FILES = {
    "tested.txt": ["--universal"],
    "oldest.txt": ["--resolution", "lowest-direct"],
}
"""Each file, and what makes it: `--universal` is one file for every Python from the oldest on, with markers."""
HEADER = "# Made by scripts/make_constraints.py; not to be edited by hand.\n"


def resolve(uv: str, options: list[str]) -> str:
    """Return the lines of a constraints file.

    Raises:
        SystemExit: no such set of versions, or uv does not answer; it has said why.
    """
    command = [uv, "pip", "compile", "pyproject.toml", "--extra", "dev", "--python-version", OLDEST_PYTHON]
    command += ["--no-header", "--no-annotate", "--quiet", *options]
    resolved = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if resolved.returncode:
        sys.exit(resolved.returncode)
    return resolved.stdout


def main() -> None:
    """Write both files, or neither."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        parser.error("this needs uv. Install it: pip install uv")
    made = {name: resolve(uv, options) for name, options in FILES.items()}
    FOLDER.mkdir(exist_ok=True)
    for name, lines in made.items():
        (FOLDER / name).write_text(HEADER + lines, encoding="utf-8")
        print(f"{FOLDER.relative_to(ROOT) / name}: {len(lines.splitlines())} packages")


if __name__ == "__main__":
    main()
