"""Prompts from files, and one sentence for each way a file can be wrong."""

import pytest

from diffrl.data.prompts import load_prompts
from diffrl.errors import ConfigError


def test_a_text_file_has_a_prompt_a_line(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffa red circle\r\n\n  zwei blaue Käfer  \nein\u2028Absatz\n".encode())
    assert [p.text for p in load_prompts(str(path))] == ["a red circle", "zwei blaue Käfer", "ein\u2028Absatz"]
    assert all(p.metadata == {} for p in load_prompts(str(path)))


def test_json_lines_bring_metadata(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"prompt": " a sign ", "target": "OPEN", "n": 3}\n\n{"prompt": "line\u2028end"}\n', encoding="utf-8"
    )
    first, second = load_prompts(str(path))
    assert first.text == "a sign" and first.metadata == {"target": "OPEN", "n": 3}
    assert second.text == "line\u2028end" and second.metadata == {}


def test_the_embedded_world_is_there():
    train, held_out = load_prompts("shapes:train"), load_prompts("shapes:held_out")
    assert train and held_out and not {p.text for p in train} & {p.text for p in held_out}
    with pytest.raises(ConfigError, match="splits train and held_out. Got 'test'"):
        load_prompts("shapes:test")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("prompts.txt", None, "prompts.txt' does not exist"),
        ("prompts.txt", b"", "at least one prompt. Got none"),
        ("prompts.txt", b" \n\n", "at least one prompt. Got none"),
        ("prompts.jsonl", b"\n", "at least one prompt. Got none"),
        ("prompts.txt", b"caf\xe9", "cannot be read as UTF-8 text"),
        ("prompts.csv", b"a red circle", r"a \.txt or \.jsonl file. Got '.*prompts.csv'"),
        ("prompts.jsonl", b'{"prompt": "a"}\n\n{"prompt": \n', r"must be a JSON object. .*prompts.jsonl:3: "),
        ("prompts.jsonl", b'{"prompt": "a"}\n["b"]\n', r'must be an object with "prompt". .*prompts.jsonl:2 is not'),
        ("prompts.jsonl", b'{"text": "a"}', r"prompts.jsonl:1 is not"),
        ("prompts.jsonl", b'{"prompt": 7}', r"prompts.jsonl:1 is not"),
        ("prompts.jsonl", b'{"prompt": "  "}', r"prompts.jsonl:1 is not"),
    ],
)
def test_each_mistake_is_one_sentence(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as found:
        load_prompts(str(path))
    assert len(found.value.problems) == 1 and "\n" not in str(found.value)


def test_a_folder_is_no_prompt_file(tmp_path):
    (tmp_path / "prompts.txt").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_prompts(str(tmp_path / "prompts.txt"))
