"""Patterns of layers, matched with names alone: a plan needs no network."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern names a module or one that it lies in.

    A pattern is one or more parts with dots between them; it fits a name that has these parts in a row, each whole.
    `norm_out` fits `norm_out.linear`, not `norm_output`; `attn.to_*` fits `blocks.0.attn.to_q`. After `^` the parts
    must begin the name: `^proj_out` fits the network's own, not `single_transformer_blocks.0.proj_out`.
    """
    wanted, parts = pattern.removeprefix("^").split("."), name.split(".")
    starts = range(1 if pattern.startswith("^") else len(parts) - len(wanted) + 1)
    if len(wanted) > len(parts):
        return False
    return any(all(map(fnmatchcase, parts[start : start + len(wanted)], wanted)) for start in starts)
