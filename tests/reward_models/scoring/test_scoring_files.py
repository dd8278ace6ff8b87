"""Which files are scored, with which prompts and metadata."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reward_models.media import to_pil
from reward_models.scoring.sources import Selection, collect
from reward_models.self_test import noise
from reward_models.text.ocr import target_of


def save(path: Path, side: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    to_pil(noise(side)).save(path)


def found(*paths: object, **options) -> list[tuple[str, str | None]]:
    items = collect(Selection([str(path) for path in paths], **options)).items
    return [(item.path.name, item.prompt) for item in items]


def test_a_folder_is_searched_in_order_without_what_is_hidden(tmp_path):
    for name in ("b/2.jpg", "a.png", "b/1.webp", ".hidden/x.png", "b/.thumb.png", "c/deep/er/z.PNG"):
        save(tmp_path / name)
    (tmp_path / "notes.md").write_text("nothing")
    (tmp_path / "a.txt").write_text("a caption, not a stranger\n")
    collected = collect(Selection([str(tmp_path)]))
    assert [str(item.path.relative_to(tmp_path)) for item in collected.items] == [
        "a.png",
        "b/1.webp",
        "b/2.jpg",
        "c/deep/er/z.PNG",
    ]
    assert dict(collected.skipped) == {"hidden": 2, "neither image nor video": 1}
    assert [item.prompt for item in collected.items] == ["a caption, not a stranger", None, None, None]


def test_patterns_files_and_repeats(tmp_path):
    for name in ("x/1.png", "x/y/2.png", "x/y/3.jpg", "4.png"):
        save(tmp_path / name)
    assert found(tmp_path / "x/**/*.png") == [("1.png", None), ("2.png", None)]
    assert found(tmp_path / "**") == [("4.png", None), ("1.png", None), ("2.png", None), ("3.jpg", None)]
    assert found(tmp_path / "x/y/3.jpg", tmp_path / "x", tmp_path / "x/y/../y/2.png") == [
        ("3.jpg", None),
        ("1.png", None),
        ("2.png", None),
    ]
    assert found(tmp_path / "x", limit=2) == [("1.png", None), ("2.png", None)]


def test_what_diffrl_generate_wrote_is_scored_by_its_index(tmp_path):
    for name in ("0000-0.png", "0001-0.png", "grid.png"):
        save(tmp_path / "out" / name)
    lines = [
        {"file": "0001-0.png", "prompt": "second", "seed": 5, "number": 0, "target": "STOP"},
        {"file": "0000-0.png", "prompt": "first", "seed": 5, "number": 1},
        {"file": "0002-0.png", "prompt": "lost", "seed": 5, "number": 0},
    ]
    (tmp_path / "out/samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    collected = collect(Selection([str(tmp_path)]))
    assert [(item.path.name, item.prompt) for item in collected.items] == [
        ("0000-0.png", "first"),
        ("0001-0.png", "second"),
        ("0002-0.png", "lost"),
    ]
    assert collected.items[1].metadata == {"target": "STOP"}
    assert collected.items[0].sample == {"seed": 5, "number": 1}
    assert dict(collected.skipped) == {"not in samples.jsonl": 1}
    assert found(tmp_path / "out/*.png") == [("0000-0.png", "first"), ("0001-0.png", "second")]
    assert found(tmp_path / "out/grid.png") == [("grid.png", None)]
    assert found(tmp_path / "out/0001-0.png") == [("0001-0.png", "second")]


def test_metadata_of_an_image_folder_and_of_geneval(tmp_path):
    for name in ("hf/a.png", "hf/sub/b.png", "hf/c.png", "geneval/00000/samples/0000.png"):
        save(tmp_path / name)
    lines = [{"file_name": "a.png", "text": "one", "tag": 1}, {"file_name": "sub/b.png", "prompt": "two"}]
    (tmp_path / "hf/metadata.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (tmp_path / "hf/c.txt").write_text("three")
    (tmp_path / "geneval/00000/metadata.jsonl").write_text('{"prompt": "four", "include": [{"class": "cat"}]}')
    items = {item.path.name: item for item in collect(Selection([str(tmp_path)])).items}
    assert {name: item.prompt for name, item in items.items()} == {
        "a.png": "one",
        "b.png": "two",
        "c.png": "three",
        "0000.png": "four",
    }
    assert items["a.png"].metadata == {"tag": 1, "text": "one"}
    assert items["0000.png"].metadata == {"include": [{"class": "cat"}]}
    assert found(tmp_path / "hf", prompt="all")[2] == ("b.png", "all")


def test_the_text_that_ocr_looks_for_is_not_lost(tmp_path):
    lines = {
        "a.png": {"text": "STOP"},
        "b.png": {"text": 'a sign that says "GO"'},
        "c.png": {"text": "OPEN", "prompt": "a shop"},
        "d.png": {"text": "SALE"},
    }
    for name in lines:
        save(tmp_path / name)
    (tmp_path / "d.txt").write_text("a window")
    index = "\n".join(json.dumps({"file_name": name, **line}) for name, line in lines.items())
    (tmp_path / "metadata.jsonl").write_text(index)
    items = collect(Selection([str(tmp_path)])).items
    assert [item.prompt for item in items] == ["STOP", 'a sign that says "GO"', "a shop", "a window"]
    assert [target_of(item.prompt, item.metadata) for item in items] == ["STOP", "GO", "OPEN", "SALE"]
    items = collect(Selection([str(tmp_path / "a.png")], prompt="a street")).items
    assert target_of(items[0].prompt, items[0].metadata) == "STOP"


@pytest.mark.parametrize("relative", ["file", "working"])
def test_a_jsonl_of_prompts_names_its_pictures(tmp_path, monkeypatch, relative):
    for name in ("in/a.png", "in/b.png"):
        save(tmp_path / name)
    folder = tmp_path / "in" if relative == "file" else tmp_path
    name = "in/b.png" if relative == "working" else "b.png"
    monkeypatch.chdir(tmp_path)
    prompts = folder / "prompts.jsonl"
    prompts.write_text(json.dumps({"file": name, "prompt": "bee", "target": "x"}) + '\n{"file": "gone.png"}\n')
    items = collect(Selection([str(tmp_path / "in")], prompts=prompts)).items
    assert [(item.path.name, item.prompt, item.metadata) for item in items] == [
        ("a.png", None, {}),
        ("b.png", "bee", {"target": "x"}),
    ]


def test_lines_of_prompts_go_by_order_and_must_be_as_many(tmp_path, refused):
    for name in ("b.png", "a.png", "c.png"):
        save(tmp_path / "in" / name)
    prompts = tmp_path / "p.txt"
    prompts.write_text("one\n\ntwo\r\nthree\n")
    assert found(tmp_path / "in", prompts=prompts) == [("a.png", "one"), ("b.png", "two"), ("c.png", "three")]
    assert found(tmp_path / "in", prompts=prompts, limit=1) == [("a.png", "one")]
    prompts.write_text("one\ntwo\n")
    message = refused(tmp_path / "in", "--prompts", prompts, "--reward", "shapes")
    assert "2 lines" in message and "3 images" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "p.jsonl:1"),
        ('{"file": 3, "prompt": "x"}', "must be text"),
        ('{"file": "no.png", "prompt": "x"}', "None of the 1 files"),
        ('{"file": "a.png", "prompt": "x"}\n{"prompt": "y"}', "Either every line"),
    ],
)
def test_a_broken_file_of_prompts_is_named(tmp_path, refused, text, expected):
    save(tmp_path / "in/a.png")
    (tmp_path / "p.jsonl").write_text(text)
    assert expected in refused(tmp_path / "in", "--prompts", tmp_path / "p.jsonl", "--reward", "shapes")


def test_an_index_that_points_elsewhere_is_not_trusted(tmp_path, refused):
    save(tmp_path / "in/a.png")
    save(tmp_path / "secret.png")
    (tmp_path / "in/samples.jsonl").write_text('{"file": "../secret.png", "prompt": "x"}\n')
    assert "outside its folder" in refused(tmp_path / "in", "--reward", "sharpness")


def test_paths_with_nothing_in_them(tmp_path, refused):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/.x.png").write_text("")
    assert "1 hidden" in refused(tmp_path / "empty", "--reward", "shapes")
    assert "There is no file or folder" in refused(tmp_path / "no", "--reward", "shapes")
    assert "No file matches" in refused(tmp_path / "*.png", "--reward", "shapes")
    (tmp_path / "notes.md").write_text("text")
    assert "no image or video" in refused(tmp_path / "notes.md", "--reward", "shapes")
    assert "directory of a run" in refused(tmp_path, "--stage", "eval", "--reward", "shapes")


def test_a_run_whose_index_is_a_folder_is_refused_for_that(tmp_path, refused):
    (tmp_path / "run/samples.sqlite").mkdir(parents=True)
    save(tmp_path / "run/before_after.png")
    message = refused(tmp_path / "run", "--reward", "sharpness")
    assert "samples.sqlite" in message and "is a folder" in message


def test_a_caption_that_a_table_cuts_is_an_error_of_its_row(tmp_path):
    for name in "ab":
        save(tmp_path / f"in/{name}.png")
    (tmp_path / "in/metadata.csv").write_text("file_name,prompt\na.png,a dog\nb.png,a cat, asleep\n")
    items = {item.path.name: item for item in collect(Selection([str(tmp_path / "in")])).items}
    assert items["a.png"].prompt == "a dog" and items["a.png"].problem is None
    assert items["b.png"].prompt is None and "metadata.csv:" in items["b.png"].problem


def test_a_table_may_name_images_by_their_whole_paths(tmp_path):
    for name in ("in/a.png", "in/deep/b.png"):
        save(tmp_path / name)
    lines = [{"file_name": str(tmp_path / "in" / name), "text": name} for name in ("a.png", "deep/b.png")]
    (tmp_path / "in/metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert found(tmp_path / "in") == [("a.png", "a.png"), ("b.png", "deep/b.png")]


def test_a_table_with_two_columns_of_one_name_is_refused(tmp_path, refused):
    """The second was taken before, without a word."""
    save(tmp_path / "in/a.png")
    (tmp_path / "in/metadata.csv").write_text("file_name,text, text\na.png,a cat,a dog\n")
    assert "names the column 'text' twice" in refused(tmp_path / "in", "--reward", "shapes")
