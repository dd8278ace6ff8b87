"""The JSON schema is current, explains every key, and agrees with the loader."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from diffrl.bundled import recipes
from diffrl.config.explain import _models_in
from diffrl.config.load import config_schema, dump_config, load_config
from diffrl.config.schema import Config

ROOT = Path(__file__).parents[2]
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
WORDLESS = {"$schema", "$defs", "title", "description", "default", "discriminator", "type"}

KEYWORDS = {
    "required": lambda value, rule: set(rule) <= set(value),
    "enum": lambda value, rule: value in rule,
    "const": lambda value, rule: value == rule,
    "minimum": lambda value, rule: value >= rule,
    "maximum": lambda value, rule: value <= rule,
    "exclusiveMinimum": lambda value, rule: value > rule,
    "exclusiveMaximum": lambda value, rule: value < rule,
    "minLength": lambda value, rule: len(value) >= rule,
    "maxLength": lambda value, rule: len(value) <= rule,
    "minItems": lambda value, rule: len(value) >= rule,
    "maxItems": lambda value, rule: len(value) <= rule,
    "pattern": lambda value, rule: re.search(rule, value) is not None,
}


def fits_type(value, name):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name in ("integer", "number"):
        return number and (name == "number" or isinstance(value, int))
    return isinstance(value, TYPES[name])


def faults(value, schema, whole, path=""):
    """A small JSON schema validator; raises on a keyword that it does not know."""
    if "$ref" in schema:
        return faults(value, whole["$defs"][schema["$ref"].rpartition("/")[2]], whole, path)
    if "type" in schema and not fits_type(value, schema["type"]):
        return [f"{path}: type"]
    found = []
    for word, rule in schema.items():
        if word in WORDLESS:
            continue
        if word in ("anyOf", "oneOf"):
            passing = [option for option in rule if not faults(value, option, whole, path)]
            bad = len(passing) != 1 if word == "oneOf" else not passing
        elif word == "properties":
            found += [f for k, v in value.items() if k in rule for f in faults(v, rule[k], whole, f"{path}.{k}")]
            bad = False
        elif word == "additionalProperties":
            bad = rule is False and bool(set(value) - set(schema["properties"]))
        elif word == "items":
            found += [f for i, v in enumerate(value) for f in faults(v, rule, whole, f"{path}.{i}")]
            bad = False
        elif word == "prefixItems":
            found += [f for v, r in zip(value, rule, strict=True) for f in faults(v, r, whole, path)]
            bad = False
        else:
            bad = not KEYWORDS[word](value, rule)
        if bad:
            return [*found, f"{path}: {word}"]
    return found


def plain(config):
    return yaml.safe_load(dump_config(config))


@pytest.mark.long
def test_the_schema_file_is_current():
    spec = importlib.util.spec_from_file_location("make_schema", ROOT / "scripts/make_schema.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.SCHEMA.read_text() == script.schema_text(), "run python scripts/make_schema.py"
    page = script.page_text()
    assert script.PAGE.read_text() == page, "run python scripts/make_schema.py"
    keys = {key for definition in config_schema()["$defs"].values() for key in definition.get("properties", {})}
    assert [key for key in sorted(keys) if f".{key}`" not in page] == []


@pytest.mark.parametrize("path", recipes().values(), ids=lambda path: path.stem)
def test_shipped_configurations_name_the_schema_fit_it_and_say_how_they_are_started(path):
    schema, text = json.loads((ROOT / "configs/schema.json").read_text()), path.read_text()
    named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / named).resolve() == ROOT / "configs" / "schema.json"
    assert any(f"{start} {path.relative_to(ROOT)}" in text for start in ("diffrl train", "scripts/train.py"))
    assert faults(yaml.safe_load(text), schema, schema) == []
    assert faults(plain(load_config(path)), schema, schema) == []


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("run", "sed", 1),
        ("run", "iterations", 0),
        ("run", "seed", True),
        ("model", "base_precision", "int4"),
        ("rollout", "explore", {}),
        ("rollout", "dynamics", {"kind": "ode"}),
        ("rollout", "tree", {"roots": 0, "splits": [0]}),
        ("rollout", "tree", {"roots": 2, "correlation": -1.0}),
        ("objective", "kind", "dpo"),
        ("credit", "normalise", "depths"),
        ("train", "betas", [0.9, 1.0]),
        ("eval", "rewards", []),
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(section, key, value):
    schema = config_schema()
    data = plain(load_config(ROOT / "configs/quickstart.yaml"))
    data[section][key] = value
    assert faults(data, schema, schema)


def test_every_key_is_explained():
    def walk(model: type[BaseModel]):
        assert model.__doc__
        for name, field in model.model_fields.items():
            inner = _models_in(field.annotation)
            assert field.description or inner, f"{model.__name__}.{name}"
            for section in inner:
                walk(section)

    walk(Config)
