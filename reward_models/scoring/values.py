"""YAML as the training configurations read it: 1e-4 is a number, `on` and dates are text."""

from __future__ import annotations

import re
from typing import Any

import yaml

from reward_models.errors import RewardError


class _Loader(yaml.SafeLoader):
    """The scalars of YAML 1.2."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan",
        "-+0123456789.",
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value, 10))


def read_yaml(text: str, where: str) -> Any:
    """Values, lists and mappings of a YAML text.

    Raises:
        RewardError: it is none.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        told = " ".join(str(error).split())
        raise RewardError(f"{where} cannot be read as YAML: {told}.") from error
