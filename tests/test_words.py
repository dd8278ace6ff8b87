"""The words of the house are the field's: names that say nothing, or say it in nobody's words, do not come back."""

import ast
from collections.abc import Iterator
from pathlib import Path

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
    "Sentinel": "RewardHackingMonitor",
    "ends_in_words": "report_exit",
    "no_stranger_exits": "forbid_sys_exit",
    "AtOnce": "ImmediateStop",
    "Meetings": "Pairing",
    "standings": "score_table",
    "stand_ins": "placeholders",
    "elsewhere": "target_machine",
    "idle_notes": "unused_keys",
}
"""Names of functions, classes, parameters and variables that are not used, and what stands for them."""

LOCALS = ("found", "given", "own", "place")
"""Parameters and variables that say nothing: each is called what it is."""

PUBLIC = {
    ("diffrl/gallery/votes.py", "picture"),
    ("diffrl/rollout/noise.py", "own"),
    ("diffrl/tracking/store.py", "picture"),
    ("diffrl/trees/record.py", "picture"),
}
"""Names that other people's code relies on, or that stand in files."""

NO_VERBS = (
    "What",
    "Whether",
    "Of",
    "That",
    "See",
    "Inside",
    "The",
    "A",
    "An",
    "How",
    "Which",
    "Where",
    "Why",
)
"""Words that begin no sentence with a verb."""

NO_NOUNS = ("Of", "That", "See", "Inside")
"""Words that begin no noun."""

MODULES = [path for room in ("diffrl", "reward_models", "scripts") for path in sorted((ROOT / room).rglob("*.py"))]


def names(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and name of what a module defines, of `LOCALS` the parameters and variables alone."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name not in LOCALS:
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def forbidden(where: str, nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield where a file defines one of these names."""
    for line, name in names(nodes):
        if (name in NAMES or name in LOCALS) and (where, name) not in PUBLIC:
            yield line, f"{name} -> {NAMES.get(name, 'what it is')}"


def verbless(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the functions whose docstring begins with no verb; that of a property may begin with a noun."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
            word = text.split()[0].rstrip(",:;.")
            noun = any("property" in ast.unparse(one) for one in node.decorator_list)
            if word in (NO_NOUNS if noun else NO_VERBS):
                yield node.lineno, f"{word} is no verb"


def hard_to_read(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield where a conditional expression is inside another, or a star or two unpack a literal."""
    for node in nodes:
        if isinstance(node, ast.IfExp) and any(isinstance(one, ast.IfExp) for one in ast.iter_child_nodes(node)):
            yield node.lineno, "a condition in a condition"
        starred = isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List | ast.Set)
        doubly = isinstance(node, ast.keyword) and node.arg is None and isinstance(node.value, ast.Dict)
        if starred or doubly:
            yield node.lineno, "a literal is unpacked"


def test_names_docstrings_and_expressions_are_those_of_the_house():
    wrong = []
    for path in MODULES:
        where, nodes = str(path.relative_to(ROOT)), list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        seen = (*forbidden(where, nodes), *verbless(nodes), *hard_to_read(nodes))
        wrong += [f"{where}:{line}: {what}" for line, what in seen]
    assert wrong == []
