"""Pairs in lists of prompts: every form of a row, what is odd about them, and every way in which one is broken."""

import json

import pytest
import torch

from diffrl.data.prompts import load_prompts, read_prompts
from diffrl.errors import ConfigError
from diffrl.training.inputs import digest_prompts
from reward_models.media import save_media


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for number, name in enumerate("abc"):
        save_media(torch.full((3, 4, 4), 60 * number, dtype=torch.uint8), tmp_path / "images" / f"{name}.webp")
    return tmp_path


def listed(folder, *rows):
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps({"prompt": "a cat", **row}) + "\n" for row in rows))
    return str(path)


def image(name):
    return f"images/{name}.webp"


A, B, C = image("a"), image("b"), image("c")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"winner": A, "loser": B}, (A, B, 1.0)),
        ({"winner": A, "loser": B, "weight": 2.5}, (A, B, 2.5)),
        ({"chosen": B, "rejected": A}, (B, A, 1.0)),
        ({"jpg_0": A, "jpg_1": B, "label_0": 1, "label_1": 0}, (A, B, 1.0)),
        ({"jpg_0": A, "jpg_1": B, "label_1": 1}, (B, A, 1.0)),
        ({"chosen": B, "rejected": A, "caption": "a cat", "jpg_0": A, "jpg_1": B, "label_0": 0}, (B, A, 1.0)),
    ],
)
def test_a_row_names_its_pair_in_one_of_three_ways_and_keeps_what_else_it_holds(folder, row, expected):
    (prompt,) = load_prompts(listed(folder, row | {"level": 4}))
    assert prompt.text == "a cat" and prompt.metadata == {"level": 4} and prompt.source is None
    assert prompt.pair == (str(folder / expected[0]), str(folder / expected[1]), expected[2])


def test_texts_that_were_chosen_are_no_pairs(folder):
    (prompt,) = load_prompts(listed(folder, {"chosen": "a longer text", "rejected": "short", "weight": 2}))
    assert prompt.pair is None and prompt.metadata == {"chosen": "a longer text", "rejected": "short", "weight": 2}


def test_what_is_odd_about_votes_is_said_and_what_prefers_nothing_is_left_out(folder):
    tie = {"jpg_0": A, "jpg_1": B, "label_0": 0.5}
    left = [{"jpg_0": A, "jpg_1": C, "label_0": 1, "voter": "eva", "time": i} for i in range(11)]
    right = {"jpg_0": A, "jpg_1": C, "label_0": 0, "voter": "eva", "time": 12}
    found = read_prompts(listed(folder, tie, {"winner": A, "loser": A}, *left, right))
    assert len(found.prompts) == 12
    said = " ".join(found.notes)
    for words in (
        "1 pairs are ties", "1 pairs name the same file twice", "10 pairs are there once more",
        "1 pairs are there both", "voter eva preferred the left image in 11 of 12 votes",
    ):  # fmt: skip
        assert words in said
    assert read_prompts(listed(folder, *left[:9])).notes == ["8 pairs are there once more than before. Each counts."]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"winner": A}, "pairs.jsonl:1 has loser=null. Name the file"),
        ({"winner": A, "loser": "images/gone.png"}, "gone.png', which does not exist. Correct the path."),
        ({"winner": A, "loser": B, "weight": 0}, "weight of a pair must be above 0"),
        ({"winner": A, "loser": B, "weight": float("nan")}, "weight of a pair must be a number"),
        ({"jpg_0": A, "jpg_1": B, "label_0": 0.7}, "label_0 of a pair must be 1, 0 or 0.5"),
        ({"jpg_0": A, "jpg_1": B, "label_0": 1, "label_1": 1}, "and label_1 what is left of 1"),
        ({"jpg_0": A, "jpg_1": B, "label_0": 0.5}, "1 pairs are ties, which prefer nothing"),
    ],
)
def test_a_broken_pair_is_one_sentence(folder, row, words):
    with pytest.raises(ConfigError, match=r".") as caught:
        load_prompts(listed(folder, row))
    assert words in str(caught.value) and len(caught.value.problems) == 1


def test_a_file_that_is_no_image_is_told(folder):
    (folder / "images" / "d.png").write_bytes(b"no image")
    with pytest.raises(ConfigError, match="An image of a pair must be readable"):
        load_prompts(listed(folder, {"winner": A, "loser": image("d").replace("webp", "png")}))


def test_parts_keep_every_pair_of_a_prompt_and_share_none(folder):
    """Also one that is there twice: it is two votes."""
    rows = [{"prompt": f"cat {i}", "winner": A, "loser": x} for i in range(200) for x in (B, B)]
    path = listed(folder, *rows)
    parts = {name: load_prompts(f"{path}@{name}") for name in ("train", "tune", "report")}
    assert sum(map(len, parts.values())) == 400 and all(len(part) > 1 for part in parts.values())
    texts = [{prompt.text for prompt in part} for part in parts.values()]
    assert sum(map(len, texts)) == 200 == len(set().union(*texts))


def test_a_digest_is_of_what_the_images_hold(folder):
    path = listed(folder, {"winner": A, "loser": B})
    before = digest_prompts(load_prompts(path))
    assert digest_prompts(load_prompts(path)) == before
    swapped = digest_prompts(load_prompts(listed(folder, {"winner": B, "loser": A})))
    save_media(torch.zeros(3, 4, 4, dtype=torch.uint8) + 9, folder / B)
    assert len({before, swapped, digest_prompts(load_prompts(listed(folder, {"winner": A, "loser": B})))}) == 3
