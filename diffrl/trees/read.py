"""Reading the trees that a run kept, without torch and PIL."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from diffrl.errors import DiffrlError
from diffrl.files import read_own
from diffrl.tracking.places import place
from diffrl.trees.record import DOCUMENT, TREES, TreeRecord, tree_name

NAME = re.compile(r"([0-9]{6,12})-([0-9]{1,9})")
_DOCUMENT = TypeAdapter(TreeRecord)


def list_trees(run_dir: Path) -> list[tuple[int, int]]:
    """Return iteration and group of the trees that were kept, ascending."""
    folders = (run_dir / TREES).iterdir() if (run_dir / TREES).is_dir() else ()
    matches = [match for folder in folders if (match := NAME.fullmatch(folder.name)) and (folder / DOCUMENT).is_file()]
    return sorted((int(match[1]), int(match[2])) for match in matches)


def read_tree(run_dir: Path, iteration: int, group: int) -> TreeRecord:
    """Return a tree that was kept.

    Raises:
        DiffrlError: it is missing, no tree, or lies elsewhere.
    """
    path = place(run_dir, f"{TREES}/{tree_name(iteration, group)}/{DOCUMENT}")
    try:
        record = _DOCUMENT.validate_json(read_own(path))
        if (record.iteration, record.group) != (iteration, group):
            raise ValueError(f"it is of iteration {record.iteration:.20g}, group {record.group:.20g}")
        _require_order(record)
        _require_leaves(record)
        _require_steps(record)
    except FileNotFoundError:
        raise DiffrlError(f"There is no tree of iteration {iteration}, group {group} in {run_dir}.") from None
    except ValidationError as error:
        raise DiffrlError(f"The tree {path} cannot be read: {_first(error)}.") from error
    except (OSError, ValueError, OverflowError) as error:
        raise DiffrlError(f"The tree {path} cannot be read: {error}.") from error
    return record


def _first(error: ValidationError) -> str:
    """Return the first of the document's faults, with its place."""
    fault = error.errors(include_url=False, include_input=False)[0]
    at = ".".join(str(part)[:40] for part in fault["loc"][:6])
    return f"{at}: {fault['msg']}" if at else str(fault["msg"])


def _require_order(record: TreeRecord) -> None:
    """Refuse parents behind their children, and nodes that do not stand at their number."""
    for number, node in enumerate(record.nodes):
        if node.id != number or (node.parent is not None and not 0 <= node.parent < number):
            raise ValueError(f"node {node.id} at place {number} has no parent before it")
        if node.root < 0 or node.child < 0:
            raise ValueError(f"node {node.id} counts from below 0")


def _require_leaves(record: TreeRecord) -> None:
    """Refuse what pulls at a split, or turns at a step, and is no sample of this tree."""
    for node in record.nodes:
        for number in (*(node.update_effect.pulls if node.update_effect else ()), *(node.turns or ())):
            if not 0 <= number < len(record.nodes) or record.nodes[number].leaf is None:
                raise ValueError(f"node {number}, named by node {node.id}, is no sample")


def _require_steps(record: TreeRecord) -> None:
    """Refuse steps between no two noise levels, and roots that a step reaches."""
    steps, nodes = range(len(record.sigmas) - 1), record.nodes
    for step, children in record.branching.items():
        if step not in steps or children < 1:
            raise ValueError(f"branching has {children!s:.20} children at step {step!s:.20} of {len(steps)}")
    for node in nodes:
        if (node.parent is None) != (node.step is None) or (node.step is not None and node.step not in steps):
            raise ValueError(f"node {node.id} ends step {node.step!s:.20} of {len(steps)}")
        above = None if node.parent is None else nodes[node.parent].step
        if above is not None and node.step is not None and node.step <= above:
            raise ValueError(f"node {node.id} comes before the node above it")
