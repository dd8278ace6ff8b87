"""Write every recipe of real size, and their table in docs/recipes.md, from the tables in configs/src/.

    python scripts/make_recipes.py [--check]

With --check nothing is written, and the exit code is 1 if a file is not what the tables and the planner say.
"""

import argparse
import shlex
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import yaml
from recipe_tables import ROOT, Dumper, Recipe, recipes, tables

from diffrl.config import load_config
from diffrl.cost.plan import make_plan, size_text

WIDTH = 119
"""Columns of a recipe's lines."""
SHORT_LIST = 60
"""Columns of a list that is written in one line."""
JOINED = "\N{NO-BREAK SPACE}"
"""Stands between the words of an override that no line may part."""
PAGE = ROOT / "docs" / "recipes.md"
BLOCKS = "<!-- {0}: begin -->", "<!-- {0}: end -->"
METHOD = ("rollout.dynamics", "rollout.stochastic", "rollout.tree.splits", "rollout.tree.branches",
          "rollout.explore.steps", "credit", "objective", "train.updates_per_iteration", "train.ema")  # fmt: skip
"""What makes a method; guidance, sizes, rate, samples a prompt and batches are of its model and medium."""


def memory(body: str, processes: int, overrides: Sequence[str] = ()) -> str:
    """Return what the planner expects of a configuration's memory a process.

    Raises:
        ValueError: there is no estimate.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "recipe.yaml")
        file.write_text(body, encoding="utf-8")
        expected = make_plan(load_config(file, overrides), processes).memory
    if expected is None:
        raise ValueError("the memory of this model is not known")
    return size_text(expected.peak)


def text(recipe: Recipe) -> str:
    """Return a recipe's file."""
    body = "\n".join(_sections(recipe.settings)) + "\n"
    asked = {"memory": "", **recipe.layers.get("figures", {})}
    figures = {name: memory(body, recipe.processes, shlex.split(words)) for name, words in asked.items()}
    return "\n".join([*_header(recipe, recipe.layers["facts"] | figures), "", body])


def _header(recipe: Recipe, facts: Mapping[str, str]) -> Iterator[str]:
    layers, file = recipe.layers, recipe.path.relative_to(ROOT)
    about = _filled(f"{layers['name']} on {layers['title']}: {layers['about']}.", facts)
    pages = f"docs/methods/{layers.get('page', recipe.preset)}.md, docs/recipes.md{layers['more_pages']}"
    yield "# yaml-language-server: $schema=../schema.json"
    yield "#"
    yield from _wrapped(about, pages) if len(about) <= WIDTH - 2 else _wrapped(f"{about} {pages}")
    yield "#"
    if recipe.processes == 1:
        yield f"#   diffrl train {file}"
    else:
        yield f"#   accelerate launch --multi_gpu --num_processes {recipe.processes} scripts/train.py {file}"
        yield f"#   diffrl plan {file} --processes {recipe.processes}        # what it costs, without running it"
    yield "#"
    yield from _wrapped(f"Hardware: {layers['hardware']}")
    yield from _wrapped(f"Memory: about {facts['memory']} a process (diffrl plan --processes {recipe.processes}).")
    for label, key in (("Note: ", "note"), ("From ", "from"), ("Ours: ", "ours"), ("Prompts and rewards: ", "prompts")):
        if words := layers["header"].get(key):
            yield from _wrapped(label + _filled(words, facts))
    yield "# Others, as overrides (docs/recipes.md):"
    for name, override in recipe.others.items():
        words = (shlex.quote(f"{key}={_flow(value)}").replace(" ", JOINED) for key, value in override.items())
        yield from (
            f"#   {line[2:]}" for line in _wrapped(f"- {_filled(name, facts)}: {' '.join(words)}", width=WIDTH - 2)
        )


def _wrapped(*paragraphs: str, width: int = WIDTH) -> Iterator[str]:
    """Yield comment lines, all but the first indented."""
    lines = [line for words in paragraphs for line in textwrap.wrap(words, width - 2, break_on_hyphens=False)]
    for i, line in enumerate(lines):
        yield f"# {'  ' * bool(i)}{line.replace(JOINED, ' ')}"


def _filled(words: str, facts: Mapping[str, str]) -> str:
    return Template(words).substitute(facts)


def _sections(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the configuration, a line for each section or for each of its keys."""
    comments = tables()["comments"]
    for name, keys in tables()["order"].items():
        if name not in settings:
            continue
        section = settings[name]
        if isinstance(section, list):
            yield from _entry(name, section)
            continue
        notes = {key: f"  # {comments[f'{name}.{key}']}" for key in section if f"{name}.{key}" in comments}
        line = f"{name}: {_flow(section)}"
        if keys is None and len(line) <= WIDTH and (len(section) == 1 or not notes):
            yield line + "".join(notes.values())
            continue
        yield f"{name}:"
        for key in sorted(section, key=(keys or list(section)).index):
            yield from (f"  {line}{notes.get(key, '')}" for line in _entry(key, section[key]))


def _entry(key: str, value: Any) -> Iterator[str]:
    """Yield a key and its value in one line, or a long list with a line for each of its elements."""
    if isinstance(value, list) and len(_flow(value)) > SHORT_LIST:
        yield f"{key}:"
        yield from (f"  - {_flow(element)}" for element in value)
    else:
        yield f"{key}: {_flow(value)}"


def _flow(value: Any) -> str:
    """Return a value in one line."""
    line = yaml.dump([value], Dumper=Dumper, default_flow_style=True, width=sys.maxsize, sort_keys=False)
    return line.strip()[1:-1]


def table() -> str:
    """Return the table of docs/recipes.md: what recipes are trained on and what they are measured by."""
    rows: dict[tuple[str, ...], dict[str, list[str]]] = {}
    everywhere: Counter[tuple[str, str]] = Counter()
    for recipe in recipes():
        media = ", ".join(recipe.layers["media"])
        prompts = recipe.settings["prompts"]["train"].removesuffix("@train")
        called = tables()["datasets"].get(prompts, f"`{prompts}`")
        row = (
            media,
            called,
            _named(recipe.settings.get("rewards", ())) or "the votes",
            _named(recipe.settings["eval"]["rewards"]),
        )
        rows.setdefault(row, {}).setdefault(recipe.preset, []).append(recipe.family)
        everywhere[media, recipe.preset] += 1
    lines = ["| media | recipes | prompts | trained on | held out |", "|---|---|---|---|---|"]
    for (media, *words), presets in rows.items():
        some = {name: families for name, families in presets.items() if len(families) < everywhere[media, name]}
        names = (f"`{name}` ({', '.join(some[name])})" if name in some else f"`{name}`" for name in presets)
        lines.append(f"| {' | '.join((media, ', '.join(names), *words))} |")
    return "\n".join(lines)


def differences() -> str:
    """Return the second table of docs/recipes.md: the keys of a method that are not the same in all families."""
    presets: dict[str, list[Recipe]] = {}
    for recipe in recipes():
        presets.setdefault(recipe.preset, []).append(recipe)
    lines = ["| preset | key | value | but |", "|---|---|---|---|"]
    for preset, members in presets.items():
        settings = {recipe.family: dict(_flat(recipe.settings)) for recipe in members}
        for key in dict.fromkeys(key for values in settings.values() for key in values if key.startswith(METHOD)):
            families: dict[str, list[str]] = {}
            for family, values in settings.items():
                families.setdefault(values.get(key, "none"), []).append(family)
            (common, _), *others = sorted(families.items(), key=lambda item: -len(item[1]))
            but = "; ".join(f"{value} in {', '.join(names)}" for value, names in others)
            lines += [f"| `{preset}` | `{key}` | {common} | {but} |"] if others else []
    return "\n".join(lines)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted keys and values as they stand in a file."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _flow(value)


def _named(rewards: Sequence[Mapping[str, Any]]) -> str:
    """Return rewards by their names, as which they are recorded, and their weights."""
    names = [f"`{reward.get('label', reward['name'])}`" for reward in rewards]
    weights = [f" x {reward['weight']}" if "weight" in reward else "" for reward in rewards]
    return ", ".join(name + weight for name, weight in zip(names, weights, strict=True))


def copies() -> Iterator[tuple[Path, str]]:
    """Yield recipes that are those of another folder, with words replaced."""
    for folder, copy in tables()["copies"].items():
        for source in sorted((ROOT / "configs" / copy["of"]).glob("*.yaml")):
            if source.stem not in copy["without"]:
                words = source.read_text(encoding="utf-8")
                for before, after in copy["replace"].items():
                    words = words.replace(before, after)
                yield ROOT / "configs" / folder / source.name, words


def files() -> Iterator[tuple[Path, str]]:
    """Yield every file that is made of the tables, and what it should hold."""
    yield from ((recipe.path, text(recipe)) for recipe in recipes())
    yield from copies()
    page = PAGE.read_text(encoding="utf-8")
    for name, lines in (("recipes", table()), ("differences", differences())):
        begin, end = (mark.format(name) for mark in BLOCKS)
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{lines}\n{end}{rest.partition(end)[2]}"
    yield PAGE, page


def main() -> None:
    """Write all files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = 0
    for file, expected in files():
        if file.exists() and file.read_text(encoding="utf-8") == expected:
            continue
        stale += 1
        print(
            f"{file.relative_to(ROOT)}: {'differs from what configs/src/ and the planner say' if check else 'written'}"
        )
        if not check:
            file.parent.mkdir(exist_ok=True)
            file.write_text(expected, encoding="utf-8")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
