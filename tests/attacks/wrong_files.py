"""The files, images and damaged runs that the lines of `wrong_commands` name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

MODULE = '''
import torch

VALUE = 3


class Contract:
    """No scorer, no objective."""


from reward_models.images.shapes import ShapesScorer


class Raises(ShapesScorer):
    def __call__(self, *arguments, **options):
        raise ValueError("the server of mine is down")


class Text(ShapesScorer):
    def __call__(self, *arguments, **options):
        return "good"


class Short(ShapesScorer):
    def __call__(self, media, *arguments, **options):
        return torch.zeros(len(media) + 1)


class Wants(ShapesScorer):
    def __init__(self, server):
        self.server = server
'''


def make_files(folder: Path, good: dict[str, Any], chains: dict[str, Any], pipeline: Path) -> None:
    """Fill a folder with what the lines name, but for runs.

    Args:
        folder: an empty one.
        good: a configuration that would train.
        chains: another one, without trees.
        pipeline: a diffusers directory.
    """
    for name, data in (("good", good), ("chains", chains)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    text = (folder / "good.yaml").read_text(encoding="utf-8")
    texts = {
        "sealed.yaml": text,
        "empty.yaml": "",
        "text.yaml": "train my model\n",
        "list.yaml": "- run\n- model\n",
        "none.yaml": "run:\nmodel:\n",
        "norewards.yaml": "run: {name: a}\n",
        "twice.yaml": text + "run: {name: again}\n",
        "tabs.yaml": text.replace("\n  ", "\n\t"),
        "unclosed.yaml": text + "more: [1, 2\n",
        "misspelt.yaml": text.replace("learning_rate:", "learning_rat:").replace("prompts:", "promts:"),
        "schema.json": '{"type": "object"}',
        "file": "not a folder",
        "empty.txt": "",
        "blank.txt": "\n \n\t\n",
        "sealed.txt": "a red circle\n",
        "prompts.txt": "a red circle\na blue square\na green square\n",
        "two.txt": "a red circle\na blue square\n",
        "one.txt": "a red circle\n",
        "free.txt": "a dog on the beach at sunset\ntwo cats\n",
        "captions.txt": "a red circle\na blue square\n",
        "prompts.csv": "prompt\na red circle\n",
        "broken.jsonl": '{"prompt": "a red circle"}\n{"prompt": \n',
        "nokey.jsonl": '{"text": "a red circle"}\n',
        "numbers.jsonl": '{"prompt": 3}\n',
        "array.jsonl": '["a red circle"]\n',
        "other.jsonl": '{"file": "green.png", "prompt": "a green circle"}\n',
        "mine.py": MODULE,
        "torn.py": "def score(:\n",
        "raising.py": "import no_such_package_at_all\n",
        "lora.safetensors": "not weights",
        "noimages/notes.txt": "no images here\n",
        "broken/broken.png": "not an image",
        "model_of_nobody/model_index.json": "{}",
        "torn_pipeline/model_index.json": '{"_class_name": ',
        "unknown_pipeline/model_index.json": json.dumps({"_class_name": "MyPipeline", "_diffusers_version": "0.42.0"}),
    }
    for name, content in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    (folder / "latin.yaml").write_bytes(("# caf\u00e9\n" + text).encode("latin-1"))
    (folder / "latin.txt").write_bytes("a caf\u00e9\n".encode("latin-1"))
    for name in ("nothing", "folder.yaml", "sealed", "images", "runs"):
        (folder / name).mkdir()
    for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
        Image.new("RGB", (32, 32), colour).save(folder / "images" / f"{name}.png")
    shutil.copy(folder / "images/red.png", folder / "picture.yaml")
    (folder / "tiny").symlink_to(pipeline)
    for name in ("sealed.yaml", "sealed.txt", "sealed"):
        (folder / name).chmod(0)


def damage_runs(folder: Path) -> None:
    """Make damaged runs of the finished one in `runs/done`."""
    for name in ("noconfig", "tornconfig", "torn"):
        shutil.copytree(folder / "runs/done", folder / "runs" / name)
    (folder / "runs/noconfig/config.yaml").unlink()
    (folder / "runs/tornconfig/config.yaml").write_text("run: [\n", encoding="utf-8")
    for weights in (folder / "runs/torn/checkpoints").rglob("*.safetensors"):
        weights.write_bytes(weights.read_bytes()[:50])
