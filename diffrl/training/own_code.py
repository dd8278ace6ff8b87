"""The files that a component of the user's own is written in: its module, and what it imports from the same folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from diffrl.config.schema import Config
from reward_models.common.own_modules import import_own
from reward_models.scoring.identity import file_digest


def own_components(config: Config) -> dict[str, str]:
    """Return the objective, credit rule, selection and dynamics that are the user's own, by their keys."""
    rollout = config.rollout
    named = {
        "objective.kind": config.objective.kind,
        "credit.reward": config.credit.reward,
        "rollout.dynamics.kind": None if rollout.dynamics is None else rollout.dynamics.kind,
        "rollout.explore.select": None if rollout.explore is None else rollout.explore.select,
    }
    return {key: str(name) for key, name in named.items() if ":" in str(name)}


def code_of(name: str) -> dict[str, str]:
    """Digest the files of a component, by their paths in the folder that its module is imported from.

    Args:
        name: "module:Object"; of one of no file, as in a notebook, there are none. An installed package counts by its
            own files alone.

    Raises:
        OSError: a file cannot be read.
    """
    module = name.partition(":")[0]
    file = getattr(import_own(module), "__file__", None)
    if file is None or not file.endswith(".py"):
        return {}
    path = Path(file).resolve()
    depth = module.count(".") + (path.stem == "__init__")
    root = path.parents[depth]
    installed = root.name in ("site-packages", "dist-packages")
    top = (module.partition(".")[0], f"{module.partition('.')[0]}.py")
    known: dict[Path, str] = {}
    waiting = [path]
    while waiting:
        path = waiting.pop()
        if path not in known and (not installed or path.relative_to(root).parts[0] in top):
            known[path] = file_digest(path)
            waiting += _imported(path, root)
    return {path.relative_to(root).as_posix(): digest for path, digest in sorted(known.items())}


def _imported(path: Path, root: Path) -> Iterator[Path]:
    """Yield the files below a folder that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        base, names = root, []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if node.level else root
            names = [node.module or "", *(f"{node.module or ''}.{alias.name}" for alias in node.names)]
        for name in names:
            source = base.joinpath(*filter(None, name.split(".")))
            files = (source.with_suffix(".py") if source != base else source / "__init__.py", source / "__init__.py")
            yield from (file for file in files if file.is_file() and file.is_relative_to(root))
