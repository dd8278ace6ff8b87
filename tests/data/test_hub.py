"""Folders as `datasets` reads them: images with their texts, samples of a .tar, images to edit, published tables."""

import io
import json
import tarfile

import pytest
from PIL import Image

from diffrl.data.hub import _Rows
from diffrl.data.prompts import load_prompts
from diffrl.errors import ConfigError


def image(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16), "red").save(path)


def rows(path, *records):
    path.write_text("\n".join(map(json.dumps, records)))


def samples(path, *parts):
    with tarfile.open(path, "w") as tar:
        for name, data in parts:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_a_folder_of_images_gives_their_texts(tmp_path, cache, prefix):
    for name in "ab":
        image(tmp_path / "d/train" / f"{name}.png")
    rows(tmp_path / "d/train/metadata.jsonl", *({"file_name": f"{prefix}{n}.png", "text": f"a cat {n}"} for n in "ab"))
    assert [p.text for p in load_prompts(f"hub:{tmp_path / 'd'}")] == ["a cat a", "a cat b"]


def test_a_folder_of_images_alone_is_refused(tmp_path, cache):
    """Its texts lie above the folder of the split, where `datasets` does not look."""
    for name in "ab":
        image(tmp_path / "d/train" / f"{name}.png")
    rows(tmp_path / "d/metadata.jsonl", *({"file_name": f"train/{n}.png", "text": f"a cat {n}"} for n in "ab"))
    with pytest.raises(ConfigError, match="has images alone.*metadata.jsonl that lies in the images' own folder"):
        load_prompts(f"hub:{tmp_path / 'd'}")


@pytest.mark.parametrize("kind", ["txt", "both"])
def test_texts_of_a_webdataset(tmp_path, cache, kind):
    (tmp_path / "d").mkdir()
    image(tmp_path / "one.png")
    parts = []
    for n in "01":
        parts.append((f"{n}.png", (tmp_path / "one.png").read_bytes()))
        parts.append((f"{n}.txt", f"a cat {n}".encode()))
        if kind == "both":
            parts.append((f"{n}.json", json.dumps({"id": n}).encode()))
    samples(tmp_path / "d/train-000.tar", *parts)
    prompts = load_prompts(f"hub:{tmp_path / 'd'}")
    assert [p.text for p in prompts] == ["a cat 0", "a cat 1"]
    assert [dict(p.metadata) for p in prompts] == [{} if kind == "txt" else {"id": n} for n in "01"]


@pytest.mark.parametrize(("column", "place"), [("source", "."), ("source_file_name", "train")])
def test_images_to_edit_are_seen_from_the_dataset(tmp_path, cache, monkeypatch, column, place):
    for name in ("a.png", "b.png"):
        image(tmp_path / "d/train" / name)
    image(tmp_path / "d" / place / "s.png")
    rows(
        tmp_path / "d/train/metadata.jsonl",
        *({"file_name": f"{n}.png", column: "s.png", "prompt": f"make it {n}"} for n in "ab"),
    )
    sources = {p.source for p in load_prompts(f"hub:{tmp_path / 'd'}")}
    assert sources == {str(tmp_path / "d" / place / "s.png")}
    whole = load_prompts(f"hub:{tmp_path / 'd'}@train")
    monkeypatch.chdir(tmp_path)
    assert load_prompts("hub:d@train") == whole


def test_images_to_edit_that_are_not_here_are_asked_for(tmp_path):
    listed = _Rows([{"prompt": "a", "source": "x.png"}], "owner/name", tmp_path / "owner/name", "train")
    with pytest.raises(ConfigError, match="must be files here.*hf download .*owner/name --repo-type dataset"):
        list(listed)
