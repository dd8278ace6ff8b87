"""Build the documentation as a site; a link or an anchor that leads nowhere fails the build.

    make docs                                  # into site/, in an environment of its own
    python scripts/build_docs.py --out site    # where mkdocs-material is installed: pip install mkdocs-material

Pages are the Markdown files of this repository as they are, so that what GitHub shows and what the site shows is the
same: README.md is the first page, docs/ keeps its place below it, and the pictures and source files that pages link to
are copied beside them. docs/mkdocs.yml has the settings.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ROOT / "docs" / "mkdocs.yml"
LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build; the exit status is mkdocs's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="folder of the site; what it holds is replaced")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="diffrl-docs-") as made:
        pages = Path(made) / "pages"
        for file in files():
            (pages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, pages / file)
        config = Path(made) / "mkdocs.yml"
        config.write_text(f"INHERIT: {SETTINGS}\ndocs_dir: {pages}\nsite_dir: {options.out.resolve()}\n", "utf-8")
        return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config]).returncode


def files() -> list[Path]:
    """Return the pages, and every file of this repository that one of them links to, relative to its root."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    tracked = {page.relative_to(ROOT) for page in pages}
    for page in pages:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            linked = (page.parent / target).resolve()
            if "://" not in target and linked.is_file() and linked.is_relative_to(ROOT):
                tracked.add(linked.relative_to(ROOT))
    return sorted(tracked)


if __name__ == "__main__":
    sys.exit(main())
