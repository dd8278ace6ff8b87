"""Prompts from files, and one sentence for each way a file can be wrong."""

import json
import os
from pathlib import Path

import pytest
from PIL import Image

from diffrl.data.prompts import load_prompts
from diffrl.data.sources import read_source, require_sources, source_size
from diffrl.data.worlds import SPLITS
from diffrl.errors import ConfigError
from diffrl.records import Prompt


def test_json_lines_bring_metadata(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"prompt": " a sign ", "target": "OPEN", "n": 3}\n\n{"prompt": "line\u2028end"}\n', encoding="utf-8"
    )
    first, second = load_prompts(str(path))
    assert first.text == "a sign" and first.metadata == {"target": "OPEN", "n": 3}
    assert second.text == "line\u2028end" and second.metadata == {}


def test_splits_that_an_embedded_world_has_not():
    with pytest.raises(ConfigError, match="held_out is now two splits: shapes:tune, to choose settings by"):
        load_prompts("shapes:held_out")
    with pytest.raises(ConfigError, match="splits train, tune and report. Got 'test'"):
        load_prompts("shapes:test")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("prompts.txt", b"", "at least one prompt. Got none"),
        ("prompts.md", b"a red circle", r"a file that ends in .txt, .*Got '.*prompts.md'"),
        (
            "prompts.csv",
            b"a red circle\na blue square",
            r"needs a column such as prompt, .* has \['a red circle'\]. Name the one",
        ),
        ("prompts.jsonl", b'{"prompt": "a"}\n\n{"prompt": \n', r"must be a JSON object. .*prompts.jsonl:3: "),
        ("prompts.jsonl", b'{"prompt": "a"}\n["b"]\n', r"must be a JSON object such as .*prompts.jsonl:2 is \[\"b\"\]"),
        ("prompts.jsonl", b'{"prompt": "  "}', r"prompts.jsonl:1 is \{"),
        ("prompts.jsonl", rb'{"prompt": "a \ud800"}', r"prompts.jsonl:1: it holds '\\ud800', half of a surrogate pair"),
        ("prompts.jsonl", b'{"prompt": ' + b"[" * 90_000, "is nested more than 50 levels deep"),
        ("prompts.jsonl", b'{"prompt": "a", "n": 1' + b"0" * 5000 + b"}", "holds a number of 5,001 digits"),
        ("prompts.jsonl", b'{"prompt": "' + b"x" * 10_001 + b'"}', "prompts.jsonl:1 has 10,001. Shorten it"),
        ("prompts.txt", b"a\n" + b"x" * 26_000_000 + b"\n", "prompts.txt:2 has 26,000,000. Shorten it"),
    ],
)
def test_each_mistake_is_one_sentence(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as found:
        load_prompts(str(path))
    assert len(found.value.problems) == 1 and "\n" not in str(found.value)


def test_parts_of_a_list_share_it_out_by_text_alone(tmp_path):
    """No text is in two parts or in one twice, all are in some, and a longer list moves none to another part."""
    texts = [f"prompt {i % 900}" for i in range(1000)]
    (short := tmp_path / "short.txt").write_text("\n".join(texts[:500]))
    (path := tmp_path / "all.jsonl").write_text(
        "\n".join(json.dumps({"prompt": t, "n": i}) for i, t in [*enumerate(texts), (3, texts[3])])
    )
    found = {part: load_prompts(f"{path}@{part}") for part in SPLITS}
    listed = [prompt.text for part in found.values() for prompt in part]
    assert sorted(listed) == sorted(texts)  # with other metadata it is another prompt
    assert 10 < len(found["tune"]) < 60 and 10 < len(found["report"]) < 60
    for part in SPLITS:
        own = {prompt.text for prompt in found[part]}
        assert [p.text for p in load_prompts(f"{short}@{part}")] == [t for t in texts[:500] if t in own]
    with pytest.raises(ConfigError, match="at least one prompt. Got none in '.*one.txt@report'"):
        (tmp_path / "one.txt").write_text("prompt 0")
        load_prompts(f"{tmp_path / 'one.txt'}@report")


def edits(folder, *records):
    """A list of prompts beside two images, one upright in its file and turned by its EXIF tag."""
    (folder / "images").mkdir(parents=True)
    Image.new("RGB", (30, 20)).save(folder / "images" / "wide.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (30, 20)).save(folder / "images" / "turned.JPG", "jpeg", exif=turned)
    path = folder / "edits.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return str(path)


def test_a_line_may_name_the_image_that_it_edits(tmp_path):
    path = edits(
        tmp_path / "a",
        {"prompt": "make it red", "source": "images/wide.png", "target": 3},
        {"prompt": "make it red", "image": "images/../images/turned.JPG"},
        {"prompt": "a cat", "source": "PartiPrompts", "image": 7},
    )
    first, second, plain = load_prompts(path)
    assert first.source == str(tmp_path / "a" / "images" / "wide.png") and first.metadata == {"target": 3}
    assert second.source == str(tmp_path / "a" / "images" / "turned.JPG") and second.metadata == {}
    assert first.key != second.key and first.beside == {"target": 3, "source": first.source}
    assert plain.source is None and plain.beside == plain.metadata == {"source": "PartiPrompts", "image": 7}
    assert source_size(first.source) == (20, 30) and source_size(second.source) == (30, 20)
    assert read_source(first.source).shape == (3, 20, 30) and read_source(second.source).shape == (3, 30, 20)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"source": "images/none.png"},
            r"edits.jsonl:1 \(source: 'images/none.png'\) leads to '/.*none.png', which does",
        ),
        ({"source": "edits.png"}, "must be a file of one still image. .* is no image that can be read. Is it whole"),
        ({"source": "images/moving.gif"}, "moving.gif' holds 2 frames. Save one of them"),
        ({"source": "images/wide.png", "image": "images/turned.JPG"}, "edits.jsonl:1 names source: .* and image: "),
    ],
)
def test_an_image_that_cannot_be_edited_is_one_sentence(tmp_path, record, message):
    path = edits(tmp_path / "a", {"prompt": "make it red", **record})
    (tmp_path / "a" / "edits.png").write_text("no image")
    frames = [Image.new("RGB", (3, 2), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a" / "images" / "moving.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(ConfigError, match=message) as found:
        load_prompts(path)
    assert len(found.value.problems) == 1 and "\n" not in str(found.value)


def test_parts_of_a_list_of_edits_have_no_image_in_common(tmp_path):
    """The same words edit many images, and an image is edited in many ways; where the list lies does not matter."""
    found = []
    for folder in ("here", "there"):
        names = [f"images/{i}.png" for i in range(200)]
        twice = [(text, name) for name in names for text in ("make it red", "make it blue", "make it red")]
        path = edits(tmp_path / folder, *({"prompt": text, "source": name} for text, name in twice))
        for name in names:
            (tmp_path / folder / name).write_bytes((tmp_path / folder / "images" / "wide.png").read_bytes())
        listed = {part: load_prompts(f"{path}@{part}") for part in SPLITS}
        found.append({part: {(p.text, Path(p.source).name) for p in own} for part, own in listed.items()})
        assert sum(len(own) for own in listed.values()) == 400
    assert found[0] == found[1]
    images = [{name for _, name in own} for own in found[0].values()]
    assert all(images) and sum(map(len, images)) == len(set.union(*images)) == 200


@pytest.mark.parametrize(
    ("source", "edits", "size", "message"),
    [
        (
            None,
            True,
            None,
            "prompts.train must name an image to edit with every prompt, for model.family mine. 'a' has",
        ),
        ("wide.png", False, None, "must not name images to edit: model.family mine draws from words alone. 'a' has "),
        ("wide.png", True, (512, 512), "to which it is scaled, 512 x 512. '.*wide.png' has 30 x 20. Crop it"),
    ],
)
def test_prompts_that_do_not_fit_a_family(tmp_path, source, edits, size, message):
    Image.new("RGB", (30, 20)).save(tmp_path / "wide.png")
    path = None if source is None else str(tmp_path / source)
    with pytest.raises(ConfigError, match=message):
        require_sources([Prompt("a", {}, path)], "prompts.train", "mine", edits, size)
    fitting = [Prompt("a", {}, str(tmp_path / "wide.png"))]
    require_sources(fitting, "prompts.train", "mine", True, (1024, 1520))  # a size in whole patches is seldom exact


def test_what_never_ends_is_not_opened(tmp_path):
    path = tmp_path / "prompts.txt"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="it must be a plain file, and is a pipe, a socket or a device"):
        load_prompts(str(path))


def test_a_file_too_large_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "prompts.txt"
    with path.open("wb") as file:
        file.truncate(10**12)  # a hole: it takes no room on the disk
    with pytest.raises(ConfigError, match="too large: it has 1,000,000,000,000 bytes, and at most 64,000,000 are read"):
        load_prompts(str(path))
    path.write_text("a\nb\nc\n")
    monkeypatch.setattr("diffrl.data.prompts.MOST_PROMPTS", 2)
    with pytest.raises(ConfigError, match="at most 2 prompts. Got 3"):
        load_prompts(str(path))


def test_a_folder_is_no_prompt_file(tmp_path):
    (tmp_path / "prompts.txt").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_prompts(str(tmp_path / "prompts.txt"))
