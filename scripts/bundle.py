"""How recipes, their schema and the tiny pipelines get into the wheel: setuptools builds it with `BuildPy`.

They lie outside the package, where a clone's reader looks for them, and setuptools takes package data only from within.
So a build is told of them here. An editable install copies nothing: `diffrl/bundled.py` finds them in the clone.
"""

from pathlib import Path

from setuptools.command.build_py import build_py

ROOT = Path(__file__).parents[1]
FILES = ("configs/**/*.yaml", "configs/schema.json", "assets/tiny-*/**/*", "assets/published/**/*.json")
BUNDLED = Path("diffrl/_bundled")


def bundled_files() -> list[str]:
    """Return every file outside the package that travels with it, relative to the root of the repository."""
    paths = {path.relative_to(ROOT) for pattern in FILES for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(
        path.as_posix() for path in paths if not any(part.startswith(".") or part == "src" for part in path.parts)
    )


class BuildPy(build_py):
    """The command that lays out the wheel, and names the files of the source distribution."""

    def _bundled(self):  # type: ignore[no-untyped-def]
        return ("diffrl", ".", str(Path(self.build_lib) / BUNDLED), bundled_files())

    def _get_data_files(self):  # type: ignore[no-untyped-def]
        return [*super()._get_data_files(), self._bundled()]

    def get_data_files_without_manifest(self):  # type: ignore[no-untyped-def]
        """Return the same for the source distribution."""
        return [*super().get_data_files_without_manifest(), self._bundled()]

    def get_source_files(self):  # type: ignore[no-untyped-def]
        """Return the modules, and this one: a source distribution builds the wheel with it."""
        return [*super().get_source_files(), Path(__file__).relative_to(ROOT).as_posix()]
