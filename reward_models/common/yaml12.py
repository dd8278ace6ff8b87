"""YAML as an editor's language server reads it, the same for training configurations and for scoring."""

from __future__ import annotations

import re
from typing import Any

import yaml

from reward_models.common.errors import RewardError
from reward_models.common.messages import cut, quote
from reward_models.common.reading import MOST_DIGITS, Unreadable, require_shallow

MOST_CHARACTERS = 1_000_000
MOST_NODES = 50_000
"""Of a text, once every alias stands for what it names; a complete configuration has 200."""

NODE_CHARACTERS = 64
"""Characters that count as one node: an alias repeats long text as well as long lists."""

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a pair, which no file can store; YAML's escapes can write it."""


def load_yaml(text: str) -> Any:
    """Return the value of a YAML text; its lists and mappings are its own, where aliases name one twice.

    Raises:
        Unreadable: it is no YAML, or too large.
    """
    if len(text) > MOST_CHARACTERS:
        raise Unreadable(f"it has {len(text):,} characters, and at most {MOST_CHARACTERS:,} are read")
    try:
        value = yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        tabs = (
            "; indent with spaces, not with tabs" if "'\\t' that cannot start any token" in str(error.problem) else ""
        )
        raise Unreadable(where + cut(str(error.problem or error.context), 300) + tabs) from error
    except RecursionError:
        raise Unreadable("it is nested too deep") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise Unreadable(cut(" ".join(str(error).split()), 300)) from error
    require_shallow(value)
    return _unshared(value)


def read_yaml(text: str, where: str) -> Any:
    """Return the values, lists and mappings of a YAML text, for options of a command.

    Raises:
        RewardError: it is none.
    """
    try:
        return load_yaml(text)
    except Unreadable as error:
        raise RewardError(f"{cut(where, 200)} cannot be read as YAML: {error}.") from error


def _unshared(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    return [_unshared(inner) for inner in value] if isinstance(value, list) else value


class Loader(yaml.SafeLoader):
    """YAML 1.2's scalars, as editors show them: 1e-4 is a number, `on` and 2026-01-31 are text, 010 is ten.

    Keys that occur twice are refused, and aliases that would multiply what stands there beyond `MOST_NODES`.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._nodes = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return a node, counted with all below it; an alias counts as much as what it names."""
        event, before = self.peek_event(), self._nodes
        node = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent) and id(node) not in self._sizes:
            raise _refused(event, f"the alias {quote(event.anchor)} stands within what it names. Write it out")
        if isinstance(node, yaml.ScalarNode) and (half := SURROGATE.search(node.value)):
            raise _refused(event, f"{ascii(half[0])} is half of a surrogate pair, no character of UTF-8. Remove it")
        length = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        self._nodes += self._sizes.get(id(node), 1 + length // NODE_CHARACTERS)
        if self._nodes > MOST_NODES:
            raise _refused(event, f"the text must have at most {MOST_NODES:,} values, aliases written out. Shorten it")
        self._sizes[id(node)] = self._nodes - before
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping whose keys all differ."""
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if isinstance(key, str) and key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {quote(key)} occurs twice, first on line {seen[key]}. Remove one of them",
                    problem_mark=key_node.start_mark,
                )
            if isinstance(key, str):
                seen[key] = line
        return super().construct_mapping(node, deep)


def _refused(event: yaml.Event, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


SCALARS = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
)
"""Tag, pattern and first characters of each scalar that is not text."""


def use_scalars(cls: Any) -> None:
    """Give a loader or a dumper these scalars and no others."""
    cls.yaml_implicit_resolvers = {}
    for tag, pattern, first in SCALARS:
        cls.add_implicit_resolver(tag, re.compile(f"^(?:{pattern})$"), list(first))


def _whole_number(loader: Loader, node: yaml.ScalarNode) -> int:
    if len(node.value) > MOST_DIGITS:
        raise yaml.MarkedYAMLError(
            problem=f"a whole number may have {MOST_DIGITS} digits. Got {len(node.value):,}. Shorten it",
            problem_mark=node.start_mark,
        )
    return int(node.value, 10)


use_scalars(Loader)
Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)
