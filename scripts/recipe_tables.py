"""Make recipes of real size from the tables in configs/src/; scripts/make_recipes.py writes their files.

A recipe is layers over each other, of which a later one wins: `every`, its media, its model, its method, the method for
its media, exceptions. A layer has

- settings, by sections, and `without`: settings of earlier layers that it drops, or whole sections;
- `choice`: prompts and rewards by name, which lie below all layers;
- words of the file's header (`title`, `name`, `about`, `hardware`, `header`), of which null drops one;
- overrides that the header offers (`others`, and `last` behind them);
- `facts`, which values and words name: $guidance, but for `scorers`, keys that all rewards get; and `figures`, the
  planner's memory with some overrides.

A method that is `like` another lies over it, a model or a method has recipes `only` for some, and an exception says
`because` of what.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "configs" / "src"
NAME = re.compile(r"[\w./@-]+(:[\w./@-]+)+")


class Loader(yaml.SafeLoader):
    """Floats stay the text that was written: 1.0e-4."""


class Dumper(yaml.SafeDumper):
    """Writes such texts as they are, and names with colons, such as geneval:train, without quotes."""

    def analyze_scalar(self, scalar: str) -> Any:
        """Judge how a text may be written."""
        analysis = super().analyze_scalar(scalar)
        analysis.allow_flow_plain |= NAME.fullmatch(scalar) is not None
        return analysis

    def ignore_aliases(self, data: Any) -> bool:
        """Write a thing in full wherever it stands."""
        return True


for kind in (Loader, Dumper):
    kind.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":float")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


@dataclass(frozen=True)
class Recipe:
    """A recipe before it is text."""

    family: str  # of models
    preset: str  # the file's name
    layers: Mapping[str, Any]  # of which it is made, merged
    settings: Mapping[str, Any]  # the configuration, by sections; floats are texts
    others: Mapping[str, Mapping[str, Any]]  # overrides that the header offers: name -> dotted key -> value

    @property
    def name(self) -> str:
        """Return family/preset, as `diffrl init` takes it."""
        return f"{self.family}/{self.preset}"

    @property
    def path(self) -> Path:
        """Return its file."""
        return ROOT / "configs" / f"{self.name}.yaml"

    @property
    def processes(self) -> int:
        """Return how many processes it is meant for."""
        return int(self.layers["facts"]["processes"])


@cache
def tables() -> dict[str, Any]:
    """Read all tables."""
    read = {
        path.stem: yaml.load(path.read_text(encoding="utf-8"), Loader)  # noqa: S506  (a SafeLoader)
        for path in SOURCES.glob("*.yaml")
    }
    return {**read["models"], **read["methods"], "exceptions": read["exceptions"]}


def recipes() -> list[Recipe]:
    """Make every recipe."""
    return [
        make_recipe(family, preset)
        for family, model in tables()["models"].items()
        for preset, method in tables()["methods"].items()
        if preset in model.get("only", [preset]) and family in method.get("only", [family])
    ]


def make_recipe(family: str, preset: str) -> Recipe:
    """Lay a recipe's layers over each other."""
    layers = list(_layers(family, preset))
    choice = [layer["choice"] for layer in layers if "choice" in layer][-1]
    total: dict[str, Any] = {"settings": _nested(tables()["choices"][choice])}
    for layer in layers:
        total = _merged(total, layer)
        without = set(layer.get("without", ()))
        total["settings"] = {
            name: {key: value for key, value in section.items() if f"{name}.{key}" not in without}
            if isinstance(section, Mapping)
            else section
            for name, section in total["settings"].items()
            if name not in without
        }
    facts = {**total["facts"], "family": family, "run": f"{family}-{preset.replace('_', '-')}"}
    settings = _filled(total["settings"], facts)
    offered = {**(total.get("others") or {}), **total["last"]}
    others = {name: _overrides(override, total["settings"]) for name, override in offered.items() if override}
    others = {name: override for name, override in others.items() if override}
    return Recipe(family, preset, total, settings, _filled(others, facts))


def _layers(family: str, preset: str) -> Iterator[Mapping[str, Any]]:
    model, media = tables()["models"][family], tables()["models"][family]["media"]
    yield tables()["every"]
    yield from (tables()["media"][medium] for medium in media)
    yield model
    lineage = [preset]
    while "like" in (method := tables()["methods"][lineage[0]]):
        lineage.insert(0, method["like"])
    for name in lineage:
        method = tables()["methods"][name]
        yield {key: value for key, value in method.items() if key not in tables()["media"]}
        yield from (method[medium] for medium in media if medium in method)
    for exception in tables()["exceptions"]:
        if family in exception["families"] and preset in exception["presets"]:
            yield exception


def _overrides(override: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an override sets, by dotted keys: nothing if it has the recipe's rewards, no prompts that it has."""
    chosen = {**tables()["choices"].get(override.get("choice"), {}), **override}
    chosen.pop("choice", None)
    if "rewards" in chosen and chosen["rewards"] == settings.get("rewards"):
        return {}
    return {
        k: v
        for k, v in chosen.items()
        if not k.startswith("prompts.") or _nested({k: v})["prompts"].items() - settings["prompts"].items()
    }


def _nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as sections."""
    sections: dict[str, Any] = {}
    for key, value in dotted.items():
        section, _, name = key.partition(".")
        sections = _merged(sections, {section: {name: value} if name else value})
    return sections


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return two mappings, of which the second wins; mappings in both are merged."""
    both = {
        key: _merged(below[key], value)
        for key, value in above.items()
        if isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
    }
    return {**below, **above, **both}


def _filled(value: Any, facts: Mapping[str, Any]) -> Any:
    """Return the same with facts in place of their names."""
    if isinstance(value, Mapping):
        return {key: _filled(inner, facts) for key, inner in value.items()}
    if isinstance(value, list):
        return [{**one, **facts["scorers"]} if isinstance(one, Mapping) else one for one in value]
    if isinstance(value, str) and value.startswith("$"):
        return facts[value[1:]]
    return value
