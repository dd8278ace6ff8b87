"""The words of the house are the field's: names that say nothing, or say it in nobody's words, do not come back."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMES = {
    "picture": "image",
    "drawn": "sampled, generated",
    "told": "describe_*, message",
    "said": "describe_*, message",
    "agreed": "raise_on_all_ranks",
    "pulled": "add_reference_kl",
    "asks_old": "needs_old_velocity",
    "noisiest": "noise_range",
    "lags": "old_policy_is_ema",
    "old_slope": "old_decay_rate",
    "old_limit": "old_decay_max",
    "worth": "value",
    "lonely_splits": "single_child_splits",
    "prompts_apart": "prompt_chunks",
    "in_advance": "prefetch",
    "knows_empty": "empty_prompt_cached",
    "_see_through": "run_to_completion",
    "ends_in_words": "report_exit",
    "no_stranger_exits": "forbid_sys_exit",
    "AtOnce": "ImmediateStop",
    "Meetings": "Pairing",
    "standings": "score_table",
    "stand_ins": "placeholders",
    "trial": "probe_rewards",
    "elsewhere": "target_machine",
    "idle_notes": "unused_keys",
}
"""Names of functions, classes, parameters and variables that are not used, and what stands for them."""

LOCALS = ("found", "given", "own", "place")
"""Parameters and variables that say nothing: each is called what it is."""

PUBLIC = {
    ("diffrl/gallery/votes.py", "picture"),
    ("diffrl/rollout/noise.py", "own"),
    ("diffrl/trees/record.py", "picture"),
}
"""Names that other people's code relies on, or that stand in files."""

DONE = (
    "checkpoint",
    "cli",
    "data",
    "distributed",
    "doctor",
    "export",
    "functional",
    "gallery",
    "objectives",
    "preflight",
    "rewards",
    "rollout",
    "run",
    "studies",
    "terminal",
    "training",
    "trees",
)
"""Rooms that keep to it."""


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of what a module defines, of `LOCALS` the parameters and variables alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name not in LOCALS:
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def forbidden(path: Path) -> list[str]:
    """Return where a file defines one of these names."""
    where = str(path.relative_to(ROOT))
    defined = names(ast.parse(path.read_text(encoding="utf-8")))
    wrong = [(n, name) for n, name in defined if name in NAMES or name in LOCALS]
    return [
        f"{where}:{n}: {name} -> {NAMES.get(name, 'what it is')}" for n, name in wrong if (where, name) not in PUBLIC
    ]


@pytest.mark.parametrize("room", DONE)
def test_no_name_is_in_nobodys_words(room):
    assert [one for path in sorted((ROOT / "diffrl" / room).rglob("*.py")) for one in forbidden(path)] == []
