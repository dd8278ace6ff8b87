"""Prompts as people publish them: every row is a prompt or is counted as none, whatever the format."""

import csv
import json
import random

import pytest

from diffrl.data.prompts import load_prompts, read_prompts
from diffrl.data.sampler import prompt_batch
from diffrl.data.worlds import SPLITS
from diffrl.errors import ConfigError

WORDS = ["None", "null", "NA", "nan", "n/a", "1984", "007", "# a heading", 'a sign, "STOP"', "ein Käfer", "= 2; 3\t4"]
"""What readers take for nothing, for numbers or for more cells than one."""


def texts(source):
    return [prompt.text for prompt in load_prompts(str(source))]


def write(path, prompts, column="prompt"):
    """A table of prompts in the format of its name, written by others than its reader."""
    rows = [{column: text, "id": str(n)} for n, text in enumerate(prompts)]
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, [column, "id"], delimiter="\t" if path.suffix == ".tsv" else ",")
            table.writeheader()
            table.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_every_text_of_every_format_is_a_prompt(tmp_path, kind):
    path = write(tmp_path / f"a.{kind}", WORDS, "Text Prompt")
    assert texts(path) == WORDS
    assert [prompt.metadata["id"] for prompt in load_prompts(str(path))] == [str(n) for n in range(len(WORDS))]


def test_a_list_of_texts_and_a_folder_of_datasets_give_every_text(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(WORDS))
    assert texts(tmp_path / "a.json") == WORDS
    pytest.importorskip("datasets")
    (tmp_path / "d").mkdir()
    for words in (WORDS, ["1984", "007"]):
        write(tmp_path / "d" / "train.csv", words)
        assert texts(f"hub:{tmp_path / 'd'}") == words


def test_a_column_of_labels_hides_no_words_and_any_column_can_be_named(tmp_path):
    rows = [{"text": n, "caption": f"a cat {n}", "title": f"title {n}"} for n in range(3)]
    (path := tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert texts(path) == ["a cat 0", "a cat 1", "a cat 2"]
    assert texts(f"{path}#title") == ["title 0", "title 1", "title 2"]
    assert load_prompts(f"{path}#caption@train") == load_prompts(f"{path}@train")
    with pytest.raises(ConfigError, match=r"must be one of \['text', 'caption', 'title'\]. Got 'none'"):
        load_prompts(f"{path}#none")
    with pytest.raises(ConfigError, match="3 of the 3 rows .* have no text in the column text: .*a.jsonl:1 is"):
        load_prompts(f"{path}#text")


@pytest.mark.parametrize("empty", ["  ", None])
def test_rows_without_a_text_are_counted_and_more_than_a_tenth_of_them_refused(tmp_path, empty):
    path = write(tmp_path / "a.jsonl", ["a cat"] * 9 + [empty])
    listed = read_prompts(str(path))
    assert len(listed.prompts) == 9
    assert any("1 of the 10 rows" in note and "a.jsonl:10 is" in note for note in listed.notes)
    write(path, ["a cat"] * 8 + [empty])
    with pytest.raises(ConfigError, match=r"At least 90% of the rows .* 1 of the 9 rows .*a.jsonl:9 is .*#COLUMN"):
        load_prompts(str(path))
    assert read_prompts(str(write(path, ["a cat"]))).notes == []


@pytest.mark.parametrize(
    ("encoding", "end"), [("utf-8", "\r\n"), ("utf-8-sig", "\n"), ("utf-16-be-mark", "\r\n"), ("utf-32", "\n")]
)
def test_encodings_with_a_mark_are_decoded_and_said(tmp_path, encoding, end):
    mark, codec = ("\ufeff", "utf-16-be") if encoding == "utf-16-be-mark" else ("", encoding)
    for name, text in (("a.txt", "ein Käfer{}看板{}"), ("a.csv", "prompt{}ein Käfer{}看板{}")):
        (tmp_path / name).write_bytes((mark + text.replace("{}", end)).encode(codec))
        listed = read_prompts(str(tmp_path / name))
        assert [prompt.text for prompt in listed.prompts] == ["ein Käfer", "看板"]
        assert any("UTF" in note for note in listed.notes) == (not encoding.startswith("utf-8"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            "a cat\n\nein Käfer\n".encode("latin-1"),
            "a.txt:3 cannot be read as UTF-8 text: it holds the byte 0xe4, and is 'ein Käfer' if .* Latin-1",
        ),
        ("a cat\na dog".encode("utf-16-le"), "a.txt:1 holds a zero byte, as UTF-16 without its mark does"),
        ("a cat\n".encode("utf-16") + b"a", "begins as UTF-16 and cannot be read as that"),
    ],
)
def test_other_encodings_are_refused_with_their_line(tmp_path, data, message):
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        load_prompts(str(tmp_path / "a.txt"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt\na cat\na red circle, a blue square\n", r"a.csv:3 has \[.*a blue square.*\] beyond. Put"),
        ('prompt\na cat\n"a dog\na bird\n', "a.csv:.* is no line of a table: .* Mend its quotes"),
    ],
)
def test_a_table_that_would_lose_half_a_prompt_is_refused(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_prompts(str(tmp_path / "a.csv"))


def test_a_dataset_of_several_configs_is_read_by_name(tmp_path):
    pytest.importorskip("datasets")
    for name in ("short", "long"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "train.csv", [f"a {name} {n}" for n in range(4)])
    files = "".join(f"- config_name: {n}\n  data_files: {n}/train.csv\n" for n in ("short", "long"))
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{files}---\n")
    assert texts(f"hub:{tmp_path}:long:train[1:3]") == ["a long 1", "a long 2"]
    assert texts(f"hub:{tmp_path}:short:train#prompt") == [f"a short {n}" for n in range(4)]
    with pytest.raises(ConfigError, match=r"\['short', 'long'\].*hub:NAME:CONFIG:SPLIT"):
        load_prompts(f"hub:{tmp_path}")


def test_one_of_several_captions_is_taken_each_epoch_by_address(tmp_path):
    rows = [{"captions": [f"{n} {letter}" for letter in "abcde"], "id": n} for n in range(7)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prompts = load_prompts(str(tmp_path / "a.jsonl"))
    assert [prompt.text for prompt in prompts] == [f"{n} a" for n in range(7)]
    taken = {}
    for iteration in random.Random(0).sample(range(56), 56):  # no state: any order, any number of ranks
        whole = prompt_batch(prompts, 6, 3, iteration).prompts
        halves = [prompt for rank in (0, 1) for prompt in prompt_batch(prompts, 6, 3, iteration, rank, 2).prompts]
        assert list(whole) == halves
        taken[iteration] = [prompt.text for prompt in whole]
    order = [text for iteration in range(56) for text in taken[iteration]]
    for epoch in range(48):
        assert sorted(text[0] for text in order[7 * epoch : 7 * epoch + 7]) == list("0123456")
    assert {text for text in order} == {f"{n} {letter}" for n in range(7) for letter in "abcde"}
    assert order[:70] != order[70:140]


def respelled(text, random):
    """The same prompt as another person writes it."""
    text = random.choice([str, str.upper, str.title])(text)
    text = random.choice([" ", "  ", "\u00a0"]).join(text.split()) + random.choice(["", ".", "!", " . ", "…"])
    return text.translate({ord(c): ord(c) + 0xFEE0 for c in "abc"}) if random.random() < 0.3 else text


def test_a_prompt_is_in_one_part_however_it_is_spelled(tmp_path):
    source = random.Random(0)
    lines = [respelled(f"a photo of cat number {n % 300} and a dog", source) for n in range(1200)]
    (path := tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    ways = {part: {int(text.casefold().split()[5]) for text in texts(f"{path}@{part}")} for part in SPLITS}
    assert all(ways.values()) and sum(map(len, ways.values())) == 300
