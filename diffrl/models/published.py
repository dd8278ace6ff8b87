"""Read what is known of pipelines and rewards before a download: a JSON file a repository in assets/published.

Architectures are those of the scripts that made the checkpoints (diffusers,
scripts/convert_{flux,sd3,sana,wan,hunyuan_video1_5}_to_diffusers.py) and of the configs that they ship; a test holds
every parameter count to the published one. Licences and gates are those that the repositories' own pages showed; they
may change, and the hub has the last word. A fact that was not seen is null; one that is left out is an error.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from diffrl.bundled import bundled_root, pipeline_folder
from diffrl.models.files import read_object

Values = Mapping[str, Any]
FOLDER = Path("assets/published")


@dataclass(frozen=True)
class Component:
    """One part of a pipeline.

    Args:
        package: diffusers or transformers.
        name: its class.
        config: as in its config.json; what is left out is the class's default.
    """

    package: str
    name: str
    config: Values

    @property
    def made(self) -> Any:
        """The class."""
        return getattr(importlib.import_module(self.package), self.name)

    def build(self) -> Any:
        """Build the module or scheduler, weights random, on the default device, which may be the meta device."""
        if self.package == "transformers":
            return self.made(self.made.config_class(**self.config))
        return self.made.from_config(dict(self.config))


@dataclass(frozen=True)
class Pipeline:
    """What a pipeline is made of.

    Args:
        name: its diffusers class.
        components: the parts that hold weights, by their names in the pipeline.
        scheduler: its noise levels.
        options: what else the pipeline is made with.
    """

    name: str
    components: Mapping[str, Component]
    scheduler: Component
    options: Values

    def assemble(self, parts: Mapping[str, Any]) -> Any:
        """Return the diffusers pipeline of these parts and its own scheduler; other parts are None, or know nothing."""
        made = getattr(importlib.import_module("diffusers"), self.name)
        parts, chosen = {"scheduler": self.scheduler.build(), **parts}, {}
        for name, parameter in list(inspect.signature(made.__init__).parameters.items())[1:]:
            if name in parts:
                chosen[name] = parts[name]
            elif _is_plain(self.options.get(name)):
                chosen[name] = self.options[name]
            elif parameter.default is parameter.empty:
                chosen[name] = _NoProcessor() if name == "processor" else None
        return made(**chosen)


class _NoProcessor:
    """Stands for a processor; Qwen-Image 2.1's pipeline, where it is made, asks for tokens of its own sentences."""

    def __init__(self) -> None:
        self.tokenizer = self

    def apply_chat_template(self, *_: Any, **__: Any) -> list[list[int]]:
        return [[]]

    def encode(self, _: str) -> list[int]:
        return [0]


def _is_plain(option: Any) -> bool:
    """Return whether an option of a pipeline is a value, not the name of a part: those are two texts."""
    numbers = isinstance(option, list) and all(isinstance(one, (int, float)) for one in option)
    return numbers or isinstance(option, (bool, int, float, str))


def hub_facts(name: str) -> Values | None:
    """Return what is known of a repository on the hub, as its file has it; None if there is no file for it."""
    return _files().get(name)


def published_pipeline(name: str) -> Pipeline | None:
    """Return what a pipeline on the hub is made of; None if it is not known."""
    facts = hub_facts(name)
    if facts is None or "pipeline" not in facts:
        return None
    parts = {part: _component(one) for part, one in facts["components"].items()}
    return Pipeline(facts["pipeline"], parts, _component(facts["scheduler"]), facts["options"])


def published_pipelines() -> dict[str, Pipeline]:
    """Return all pipelines that are known, by their names on the hub."""
    known = {name: published_pipeline(name) for name in _files()}
    return {name: one for name, one in known.items() if one is not None}


def find_pipeline(path: str) -> Pipeline | None:
    """Return what a pipeline's folder, or a published one, is made of; None if it is neither.

    Raises:
        ConfigError: a file of the folder is torn.
    """
    folder = pipeline_folder(path)
    if not folder.is_dir():
        return published_pipeline(path)
    return _pipeline_of(folder) if (folder / "model_index.json").is_file() else None


def reward_facts() -> Mapping[str, Values]:
    """Return what the registered rewards with weights take, by name.

    Of each: `weights`, repositories with the parameters that the reward takes of them (none where they are small ones
    of another library, or a server's); where it has some, `configs`, repositories of which config and
    tokenizer alone are read, and `call_bytes`, what scoring a sample holds at most beside the weights, in float32
    (scripts/measure_scorers.py; `geneval` on a square, which it looks at in 800 x 800 pixels, VideoAlign on two
    seconds, of which it sees four frames). The language heads of Qwen2-VL, which no reward uses, are left out.
    """
    return _read(bundled_root() / FOLDER / "rewards.json")


@cache
def _files() -> Mapping[str, Values]:
    files = sorted((bundled_root() / FOLDER).glob("*--*.json"))
    return {file.stem.replace("--", "/"): _read(file) for file in files}


@cache
def _read(file: Path) -> Values:
    read: Values = json.loads(file.read_text(encoding="utf-8"))
    return read


def _component(facts: Values) -> Component:
    return Component(facts["package"], facts["class"], facts["config"])


def _pipeline_of(folder: Path) -> Pipeline:
    index = read_object(folder / "model_index.json")
    named = {name: one for name, one in index.items() if isinstance(one, list) and len(one) == 2 and one[-1]}
    scheduler = Component("diffusers", named["scheduler"][-1], read_object(folder / "scheduler/scheduler_config.json"))
    parts = {
        name: Component(one[0] if one[0] == "transformers" else "diffusers", one[-1], read_object(file))
        for name, one in named.items()
        if (file := folder / name / "config.json").is_file()
    }
    return Pipeline(index["_class_name"], parts, scheduler, index)
