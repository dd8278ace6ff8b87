"""The words of the house are the field's: names that say nothing, or say it in nobody's words, do not come back."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EVERYWHERE = {
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
    "found": "what it is",
    "given": "what it is",
    "own": "what it is",
    "place": "what it is",
}
"""Names of functions, classes, parameters and variables that are not used, and what stands for them."""


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of everything that a module defines: functions, classes, parameters, variables, fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def used(path: Path) -> list[str]:
    """Return where a file defines one of `EVERYWHERE`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        f"{path.relative_to(ROOT)}:{n}: {word} -> {EVERYWHERE[word]}" for n, word in names(tree) if word in EVERYWHERE
    ]


@pytest.mark.parametrize("room", ["diffrl", "reward_models", "scripts"])
def test_no_name_is_one_of_nobodys_words(room):
    assert not [one for path in sorted((ROOT / room).rglob("*.py")) for one in used(path)]
