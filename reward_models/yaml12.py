"""YAML as an editor's language server reads it, the same for training configurations and for scoring."""

from __future__ import annotations

import re
from typing import Any

import yaml


class Loader(yaml.SafeLoader):
    """YAML 1.2's scalars, as editors show them: 1e-4 is a number, `on` and 2026-01-31 are text, 010 is ten.

    Keys that occur twice are refused.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping whose keys all differ."""
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if isinstance(key, str) and key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} occurs twice, first on line {seen[key]}. Remove one of them",
                    problem_mark=key_node.start_mark,
                )
            if isinstance(key, str):
                seen[key] = line
        return super().construct_mapping(node, deep)


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


use_scalars(Loader)
Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value, 10))
