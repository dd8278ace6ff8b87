"""README and docs tell the truth about the tree, the commands and the keys."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from diffrl.bundled import recipes
from diffrl.config.explain import RENAMED
from diffrl.config.load import config_schema

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def key_paths(schema, node, prefix=""):
    """Every key path of the configuration; list entries are left out."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].split("/")[-1]]
    for choice in node.get("anyOf", []) + node.get("oneOf", []):
        yield from key_paths(schema, choice, prefix)
    for name, child in node.get("properties", {}).items():
        yield f"{prefix}{name}"
        yield from key_paths(schema, child, f"{prefix}{name}.")


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them: lower case, punctuation gone, hyphens for spaces."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = []
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, flags=re.MULTILINE):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        there = page.parent / path if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_commands_and_options_of_the_readme_exist():
    from typer.main import get_command

    from diffrl.cli import app

    commands = get_command(app).commands
    blocks = "".join(re.findall(r"^```bash\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL))
    lines = [line.split("#")[0] for line in blocks.splitlines() if line.startswith("diffrl ")]
    assert len(lines) >= 6
    for line in lines:
        words = shlex.split(line)
        known = {option for parameter in commands[words[1]].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line
        for word in words[2:]:
            if word.startswith(("configs/", "assets/", "scripts/")):
                assert (ROOT / word).exists(), word


def test_keys_that_pages_name_are_keys():
    schema = config_schema()
    keys = set(key_paths(schema, schema)) | set(RENAMED)
    sections = set(schema["properties"])
    for page in PAGES:
        for code in re.findall(r"`([a-z_]+\.[a-z_.]+)(?::[^`]*|=[^`]*)?`", page.read_text(encoding="utf-8")):
            if code.split(".")[0] in sections and not code.endswith((".py", ".md", ".yaml", ".json")):
                assert code in keys, f"{page.name}: {code}"


def test_make_targets_of_the_pages_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert set(named) <= targets


@pytest.mark.parametrize("path", recipes().values(), ids=lambda path: path.stem)
def test_a_configuration_begins_with_its_command_and_its_schema(path):
    text = path.read_text(encoding="utf-8")
    schema = re.search(r"^# yaml-language-server: \$schema=(\S+)", text)
    assert schema and (path.parent / schema[1]).resolve() == ROOT / "configs" / "schema.json"
    commands = (f"{start} {path.relative_to(ROOT)}" for start in ("diffrl train", "scripts/train.py"))
    assert any(command in text.split("\nrun:")[0] for command in commands)
    assert yaml.safe_load(text)["run"]["name"]
