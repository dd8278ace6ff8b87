"""Which leaf of which kept tree a training sample is: there lies its image, and why it was pushed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from diffrl.errors import DiffrlError
from diffrl.trees.read import list_trees, read_tree
from diffrl.trees.record import DOCUMENT, TREES, tree_name


class Leaf(NamedTuple):
    """A sample in its tree."""

    tree: str  # its name, "000020-3"
    node: int  # that the sample grows from
    file: str | None  # of its finished image, relative to the run; None if it was not kept


Leaves = Mapping[tuple[int, str], Leaf]
"""By the initial noise and the path of the sample, "0.1"."""


def groups_with_trees(run: Path, iteration: int) -> frozenset[int]:
    """Return groups of an iteration whose trees were kept."""
    return frozenset(group for other, group in list_trees(run) if other == iteration)


def leaves_of(run: Path, iteration: int, group: int) -> Leaves:
    """Return the sampled leaves of a tree; none of one that was not kept or cannot be read: its own page says why."""
    document = run / TREES / tree_name(iteration, group) / DOCUMENT
    try:
        return _leaves(run, iteration, group, document.stat().st_mtime_ns)
    except (OSError, DiffrlError):
        return {}


@lru_cache(maxsize=64)
def _leaves(run: Path, iteration: int, group: int, written: int) -> Leaves:
    """Read once for what was written then."""
    record, folder = read_tree(run, iteration, group), f"{TREES}/{tree_name(iteration, group)}"
    return {
        (node.root, ".".join(map(str, node.leaf.path))): Leaf(
            record.name, node.id, f"{folder}/{node.picture}" if node.picture else None
        )
        for node in record.nodes
        if node.leaf is not None and node.sampled and not node.leaf.audit
    }
