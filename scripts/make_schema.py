"""Write what follows from the configuration: configs/schema.json for editors, docs/configuration.md for people.

python scripts/make_schema.py
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffrl.config.explain import RENAMED
from diffrl.config.load import config_schema

ROOT = Path(__file__).parents[1]
SCHEMA, PAGE = ROOT / "configs" / "schema.json", ROOT / "docs" / "configuration.md"
LENGTHS = {"maxLength": "characters", "maxItems": "entries"}
INTRODUCTION = """# Configuration

Made from the configuration's models by `python scripts/make_schema.py`; edit those, not this page.

A configuration is a YAML file of the sections below; keys in **bold** must be given. `diffrl train FILE a.b=c ...`
replaces single values, list entries by their number (`rewards.0.weight=2`). Unknown keys are refused, all problems are
reported at once, and no value is ever adjusted. `diffrl check FILE` looks without training. The resolved configuration
is kept in the run. It may name modules of your own, which are imported when it is read: do not use strangers'
([what runs code](reliability.md#what-runs-code)).

File and prompts are read within bounds: 1,000,000 characters and 50,000 values with all aliases written out; prompts
64 MB, 10,000 characters each (100,000 with what stands beside it), 1,000,000 of them. What a pipeline's own files say
is bounded too.
"""


def schema_text() -> str:
    """Return the content of configs/schema.json."""
    return json.dumps(config_schema(), indent=1, ensure_ascii=False) + "\n"


def page_text() -> str:
    """Return the content of docs/configuration.md."""
    schema = config_schema()
    lines = [INTRODUCTION]
    for name, section in schema["properties"].items():
        rows = list(_rows(schema, section, name, name in schema["required"]))
        if len(rows) > 1:
            lines += [f"## {name}", "", rows[0][2], "", "| key | values | meaning |", "|---|---|---|"]
            lines += [f"| {key} | {values} | {meaning} |" for key, values, meaning in rows[1:]]
            lines.append("")
    lines += ["## Renamed keys", "", "An old name is refused with the new one.", "", "| was | is |", "|---|---|"]
    lines += [f"| `{old}` | `{new}` |" for old, new in RENAMED.items()]
    lines.append("")
    return "\n".join(lines)


def _rows(schema: dict[str, Any], node: dict[str, Any], path: str, required: bool) -> Iterator[tuple[str, str, str]]:
    """Yield a row for a key and for every key below it: key, values, meaning."""
    meaning = node.get("description", "")
    choices = list(_choices(schema, node))
    items = [_resolve(schema, choice["items"]) for choice in choices if "items" in choice]
    objects = [c for c in [*choices, *items] if "properties" in c]
    meaning = meaning or (objects[0].get("description", "") if objects else "")
    values = " or ".join(dict.fromkeys(_values(choice) for choice in choices))
    if "default" in node and not isinstance(node["default"], dict):
        values += f"; default `{json.dumps(node['default'])}`"
    yield f"**`{path}`**" if required else f"`{path}`", values, meaning.replace("\n", " ").replace("|", "\\|")
    below = f"{path}.0" if items else path
    for variant in objects:
        kind = variant["properties"].get("kind", {}).get("const")
        for name, child in variant["properties"].items():
            if name == "kind" and kind:
                if len(objects) > 1:
                    yield f"`{below}.kind`", f"`{kind}`", variant.get("description", "").replace("\n", " ")
                continue
            yield from _rows(schema, child, f"{below}.{name}", name in variant.get("required", ()))


def _choices(schema: dict[str, Any], node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all that a key may be, those of a choice within a choice too."""
    for choice in node.get("oneOf", node.get("anyOf", [node])):
        if choice is not node and ("oneOf" in choice or "anyOf" in choice):
            yield from _choices(schema, choice)
        else:
            yield _resolve(schema, choice)


def _resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference points to, with what stands beside the reference."""
    reference = node.get("$ref")
    return {**schema["$defs"][reference.split("/")[-1]], **node} if reference else node


def _values(node: dict[str, Any]) -> str:
    """Return what a key accepts, in a few words."""
    if "enum" in node:
        return " or ".join(f"`{value}`" for value in node["enum"])
    if "const" in node:
        return f"`{json.dumps(node['const'])}`"
    if "properties" in node or "$ref" in node:
        return "section"
    bounds = [
        f"{sign} {node[key]:,}" if isinstance(node[key], int) else f"{sign} {node[key]:g}"
        for key, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))
        if key in node and abs(node[key]) < 1e18
    ]
    bounds += [f"at most {node[key]:,} {what}" for key, what in LENGTHS.items() if key in node]
    names = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "array": "list"}
    return " ".join([names.get(node.get("type", ""), node.get("type", "section")), ", ".join(bounds)]).strip()


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    PAGE.write_text(page_text(), encoding="utf-8")
    print(SCHEMA, PAGE, sep="\n")
