"""What comes with diffrl besides code: recipes, their schema, tiny pipelines.

In a clone they lie at its top, in a wheel inside the package (scripts/bundle.py); below that their names are the same.
"""

from __future__ import annotations

import difflib
import re
import shlex
from functools import cache
from pathlib import Path

from diffrl.errors import ConfigError
from reward_models.common.messages import quote

PACKAGE = Path(__file__).parent
PIPELINE = re.compile(r"assets/tiny-[a-z0-9-]+/?")
"""Names of the tiny pipelines, wherever diffrl is started."""


@cache
def bundled_root() -> Path:
    """Return the folder that holds configs/ and assets/.

    Raises:
        ConfigError: this copy of diffrl was installed without them.
    """
    for root in (PACKAGE / "_bundled", PACKAGE.parent):
        if (root / "configs" / "quickstart.yaml").is_file():
            return root
    raise ConfigError(
        f"This copy of diffrl, in {PACKAGE}, has come without recipes and tiny pipelines. Install it with pip, or work "
        "in a clone."
    )


def pipeline_folder(path: str | Path) -> Path:
    """Return the folder that a pipeline is looked for in.

    `assets/tiny-sd3` and its like name those that come with diffrl, unless there is such a folder here: so recipes work
    wherever they are started, and hold no path of one machine. Any other path, and a name on the hub, stays as it is.
    """
    if PIPELINE.fullmatch(str(path)) and not Path(path).exists():
        try:
            folder = bundled_root() / path
        except ConfigError:
            return Path(path)  # and whoever opens it says that it is not there
        if folder.is_dir():
            return folder
    return Path(path)


def comes_with_diffrl(folder: Path) -> bool:
    """Return whether a pipeline's folder is one of the tiny ones that come with diffrl, which are known to be whole."""
    try:
        root = bundled_root().resolve()
    except ConfigError:
        return False
    where = folder.resolve()
    return where.is_relative_to(root) and PIPELINE.fullmatch(where.relative_to(root).as_posix()) is not None


def recipes() -> dict[str, Path]:
    """Return files of all recipes by their names, such as quickstart and sd3/flow_grpo."""
    folder = bundled_root() / "configs"
    shipped = (file for file in folder.rglob("*.yaml") if file.parent.name != "src")  # of which they are made
    files = sorted(shipped, key=lambda file: (len(file.relative_to(folder).parts), file))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def find_recipe(name: str) -> tuple[str, Path]:
    """Return a recipe by its name, which may also be written as in a clone: configs/sd3/flow_grpo.yaml.

    Returns:
        Its name and its file.

    Raises:
        ConfigError: there is none; lists those that there are.
    """
    known = recipes()
    plain = name.removeprefix("configs/").removesuffix(".yaml")
    if plain in known:
        return plain, known[plain]
    close = difflib.get_close_matches(plain, [*known, *(n.rpartition("/")[2] for n in known)], 1, 0.7)
    meant = [n for n in known if close and close[0] in (n, n.rpartition("/")[2])]
    folders: dict[str, list[str]] = {}
    for recipe in known:
        folder, _, last = recipe.rpartition("/")
        folders.setdefault(folder, []).append(last)
    listed = "\n".join(
        f"  {folder}/: {', '.join(names)}" if folder else f"  {names[0]}" for folder, names in folders.items()
    )
    hint = f" Did you mean {' or '.join(meant)}?" if meant else ""
    raise ConfigError(f"A recipe must be one of those below. Got {quote(name)}.{hint}\n{listed}")


def recipe_summary(file: Path) -> str:
    """Return what a recipe is for: the first words of its header, in one line."""
    about = file.read_text(encoding="utf-8").split("\n#\n", 2)[1]
    text = " ".join(line.removeprefix("#").strip() for line in about.splitlines())
    return re.split(r"[.:]? \(?docs/", text)[0].rstrip(".")


def write_recipe(name: str, out: Path | None) -> tuple[Path, str]:
    """Write a recipe to a file of the user's, its header's commands and its schema as they are outside a clone.

    Args:
        name: of the recipe.
        out: file to write; None for the recipe's own name, in this folder.

    Returns:
        The file, and the recipe's name.

    Raises:
        ConfigError: there is no such recipe, or something is at `out` already.
    """
    name, file = find_recipe(name)
    out = Path(f"{name.replace('/', '-')}.yaml") if out is None else out
    if out.exists():
        raise ConfigError(f"A file is never overwritten. {out} already exists. Write to another one: --out FILE.")
    text = file.read_text(encoding="utf-8")
    text = re.sub(r"(?<=\$schema=)\S+", lambda _: str(bundled_root() / "configs" / "schema.json"), text, count=1)
    text = text.replace(f"configs/{name}.yaml", shlex.quote(str(out))).replace(
        "scripts/train.py", "-m diffrl.cli train"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    return out, name
