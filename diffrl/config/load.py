"""Read a configuration: YAML, `a.b=c` overrides, and every problem reported at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from diffrl.bundled import recipes
from diffrl.config.checks import cross_section_problems
from diffrl.config.explain import explain
from diffrl.config.schema import Config
from diffrl.errors import ConfigError
from reward_models.common.messages import cut, quote, show
from reward_models.common.reading import MOST_DEPTH, Unreadable, read_text
from reward_models.common.yaml12 import MOST_CHARACTERS, load_yaml, use_scalars

SCHEMA_URL = "https://json-schema.org/draft/2020-12/schema"
KINDS: dict[type, str] = {str: "a line of text", list: "a list"}
"""What a file may hold in place of sections, in words."""
BREAKS = frozenset("\x85\u2028\u2029")


class _Dumper(yaml.SafeDumper):
    """Writes what `Loader` reads back as the same values."""


use_scalars(_Dumper)
_Dumper.add_representer(tuple, lambda dumper, value: dumper.represent_list(value))


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Return text; in double quotes where YAML would take one of its characters for the end of a line."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if BREAKS & set(text) else None)


_Dumper.add_representer(str, _represent_text)


def load_config(path: str | Path, overrides: Mapping[str, Any] | Sequence[str] = ()) -> Config:
    """Read and check a configuration file.

    Args:
        path: a YAML file.
        overrides: "a.b=c" each, as on the command line, where c is read as YAML; or a mapping of "a.b" to values. Parts
            of a path that are numbers index lists. Later ones win.

    Raises:
        ConfigError: the file is missing or no YAML mapping, or there are problems; all of them are listed.
    """
    path = Path(path)
    try:
        text = read_text(path, 4 * MOST_CHARACTERS)
    except FileNotFoundError as error:
        raise ConfigError(
            f"The configuration must be a file. Got {path}, which is not there. {_way_out(path)}"
        ) from error
    except Unreadable as error:
        raise ConfigError(f"The configuration {path} {error}.") from error
    data = _parse(text, str(path))
    if not isinstance(data, dict):
        got = "an empty file" if data is None else KINDS.get(type(data), "a single value")
        raise ConfigError(f"the file must hold sections such as run: and model:. Got {got}.", str(path))
    problems: list[str] = []
    for override in _listed(overrides):
        try:
            _apply(data, override)
        except ConfigError as error:
            problems += error.problems
    return make_config(data, str(path), problems)


def _way_out(path: Path) -> str:
    """Return what to do where there is no such file: a recipe that comes with diffrl can be written here."""
    recipe = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
    try:
        known = recipe in recipes()
    except ConfigError:
        known = False
    return f"Write that recipe with: diffrl init {recipe}" if known else "Check the path; diffrl init writes one."


def make_config(data: Mapping[str, Any], source: str | None = None, problems: Sequence[str] = ()) -> Config:
    """Check a mapping of sections.

    Args:
        data: as read from YAML.
        source: where it is from, for the message.
        problems: problems found before, reported with the others.

    Raises:
        ConfigError: every problem, each with its path, the rule, what was given and a way out.
    """
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        texts = explain(error.errors(include_url=False), Config)
        if not any(detail["loc"] == () and detail["type"] == "problems" for detail in error.errors()):
            texts += cross_section_problems(_valid_sections(data))
        raise ConfigError([*problems, *texts], source) from error
    if problems:
        raise ConfigError(problems, source)
    return config


def _valid_sections(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections that are right on their own, so that the rules between them can be checked too."""
    sections = {}
    for name, field in Config.model_fields.items():
        if name not in data:
            if not field.is_required():
                sections[name] = field.get_default(call_default_factory=True)
            continue
        annotation: Any = field.rebuild_annotation()
        try:
            sections[name] = TypeAdapter(annotation).validate_python(data[name])
        except ValidationError:
            continue
    return sections


def _parse(text: str, source: str) -> Any:
    try:
        return load_yaml(text)
    except Unreadable as error:
        raise ConfigError(f"It cannot be read as YAML: {error}.", source) from error


def _listed(overrides: Mapping[str, Any] | Sequence[str]) -> Sequence[str | tuple[str, Any]]:
    """Return overrides one by one: as texts, or as pairs of a path and a value."""
    if isinstance(overrides, Mapping):
        return list(overrides.items())
    if isinstance(overrides, str) or not all(isinstance(override, str) for override in overrides):
        raise ConfigError(
            'overrides must be a list such as ["run.seed=1"], or a mapping such as {"run.seed": 1}. Got '
            f"{show(overrides)}. Make it one of these."
        )
    return overrides


def _path_and_value(override: str | tuple[str, Any]) -> tuple[str, Any]:
    """Return what an override replaces, and by what."""
    if isinstance(override, tuple):
        path, value = override
        return str(path), os.fspath(value) if isinstance(value, os.PathLike) else value
    path, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(_no_override(quote(override)))
    if not text.strip() and all(path.split(".")):
        raise ConfigError(
            f"The override {quote(override)} must have a value. Write {cut(path, 100)}=null for none, or '' for empty."
        )
    return path, _parse(text, f"override {quote(override)}")


def _no_override(quoted: str) -> str:
    return f"An override must be section.key=value. Got {quoted}. Write for example run.seed=1."


def _apply(data: dict[str, Any], override: str | tuple[str, Any]) -> None:
    """Put one override into the data. A key that nobody knows is found later, with all the others."""
    path, value = _path_and_value(override)
    parts, quoted = path.strip().split(".", MOST_DEPTH), quote(override if isinstance(override, str) else path)
    if not all(parts) or "." in parts[-1]:
        raise ConfigError(_no_override(quoted))
    here: Any = data
    for index, part in enumerate(parts):
        reached, last = cut(".".join(parts[:index]), 100), index == len(parts) - 1
        if isinstance(here, list):
            key: Any = _list_index(part, here, reached, quoted)
        elif isinstance(here, dict):
            key = part
        else:
            raise ConfigError(f"{reached} has no keys of its own. Got the override {quoted}. Override {reached}.")
        if last:
            here[key] = value
        else:
            if isinstance(here, dict) and here.get(key) is None:
                here[key] = {}
            here = here[key]


def _list_index(part: str, values: list[Any], path: str, quoted: str) -> int:
    if part.isdecimal() and len(part) < 10 and int(part) < len(values):
        return int(part)
    have = f"{len(values)} entries, numbered from 0" if len(values) != 1 else "one entry, number 0"
    raise ConfigError(
        f"{path} is a list of {have}. Got the override {quoted}. Use a number in range or override all of {path}."
    )


def dump_config(config: Config) -> str:
    """Return YAML with every key of the configuration, defaults too; `load_config` reads it back as an equal one."""
    return yaml.dump(config.model_dump(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def config_schema() -> dict[str, Any]:
    """Return the JSON schema that editors use."""
    return {"$schema": SCHEMA_URL, **Config.model_json_schema(), "title": "diffrl configuration"}
