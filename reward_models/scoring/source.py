"""What code a scorer's scores depend on, read from its import statements: files of its own, and packages.

Read, and not looked up among the modules that are loaded: those depend on what else this process did, and a key of the
cache must not. Imports within functions count as others do; what a module imports by a computed name is not seen.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

INSTALLED = ("site-packages", "dist-packages")
OURS = ("reward_models", "diffrl")
"""Their scorers count versions; in the key of a stranger's scorer is the version of the package."""
DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "diffrl": "diffrl",
    "open_clip": "open-clip-torch",
    "reward_models": "diffrl",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
}
"""Of packages whose name is another than that of their module."""
INDIFFERENT = (
    "fastapi",
    "httpx",
    "huggingface_hub",
    "pydantic",
    "rich",
    "safetensors",
    "tqdm",
    "typer",
    "uvicorn",
    "yaml",
)
"""Packages that fetch, read and show; a score is the same with any version of them."""


@dataclass
class Sources:
    """Files by module name, and top-level names of other modules that they import."""

    files: dict[str, Path] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)


def sources_of(module: str) -> Sources:
    """A module and everything near it that it imports, directly or not.

    Near is below the folder that its package lies in, and below the working directory; of an installed module, in the
    same package.

    Raises:
        ImportError, OSError, TypeError, ValueError: there is no such module, or it has no source.
    """
    file = Path(str(inspect.getsourcefile(importlib.import_module(module)))).resolve()
    depth = module.count(".") + (file.name == "__init__.py")
    own = file.parents[depth]
    top = module.partition(".")[0]
    only = top if top in OURS or set(INSTALLED) & set(file.parts) else None
    roots = [own] if only else list(dict.fromkeys([own, Path.cwd().resolve()]))
    found = Sources()
    waiting = [*_with_parents(module)]
    while waiting:
        name = waiting.pop()
        head = name.partition(".")[0]
        if name in found.files or head in sys.stdlib_module_names:
            continue
        place = file if name == module else _place(name, roots, only)
        if place is None:
            if _place(head, roots, only) is None and not _is_folder(head, roots, only):
                found.others.add(head)
            continue
        found.files[name] = place
        waiting += [found for imported in _imports(place, name) for found in _with_parents(imported)]
    return found


def versions(names: set[str]) -> list[str]:
    """Names and versions of the packages behind top-level modules; of those that are not installed, nothing."""
    made = []
    for name in sorted(names - set(INDIFFERENT)):
        try:
            made.append(f"{name} {importlib.metadata.version(DISTRIBUTIONS.get(name, name))}")
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue
    return sorted(set(made))


def _with_parents(name: str) -> list[str]:
    """a.b.c: also a and a.b, which are run before it."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _place(name: str, roots: list[Path], only: str | None) -> Path | None:
    """The file of a module that is near, or None."""
    head = name.partition(".")[0]
    if (head in OURS and only != head) or (only is not None and only != head):
        return None
    for root in roots:
        base = root.joinpath(*name.split("."))
        for file in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if file.is_file() and (only or not set(INSTALLED) & set(file.relative_to(root).parts)):
                return file.resolve()
    return None


def _is_folder(head: str, roots: list[Path], only: str | None) -> bool:
    """Whether a name is that of a near package without __init__.py."""
    return head not in OURS and only is None and any((root / head).is_dir() for root in roots)


@lru_cache(maxsize=4096)
def _parsed(file: Path, stamp: int) -> ast.Module | None:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # it is none that could have been imported
        return None


def _imports(file: Path, name: str) -> Iterator[str]:
    """Names of modules, or of things in modules, that a file imports."""
    tree = _parsed(file, file.stat().st_mtime_ns)
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Call) and _is_import_call(node.func) and node.args:
            given = node.args[0]
            if isinstance(given, ast.Constant) and isinstance(given.value, str) and given.value.strip("."):
                yield given.value
    return


def _is_import_call(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return name in ("import_module", "__import__")
