"""The world of words: its splits, its prompts, and pictures that the recogniser reads."""

from itertools import combinations

import numpy as np
import pytest
import torch

from diffrl.data.prompts import load_prompts
from diffrl.data.words import (
    COLORS,
    HEIGHT,
    PAIRS,
    VOCABULARY,
    WIDTH,
    Sign,
    parse_prompt,
    prompts,
    render,
    words,
)
from diffrl.data.worlds import SPLITS
from diffrl.errors import DiffrlError
from reward_models import RewardBatch, load_reward
from reward_models.text.ocr import target_of


def test_no_word_is_in_two_splits_and_none_is_a_word_of_the_grammar():
    for one, other in combinations(SPLITS, 2):
        assert not set(words(one)) & set(words(other))
    assert sorted(word for split in SPLITS for word in words(split)) == sorted(VOCABULARY) == sorted(set(VOCABULARY))
    assert all(3 <= len(word) <= 5 and word.isascii() and word.islower() for word in VOCABULARY)
    assert not set(VOCABULARY) & {"the", "word", "in", "on", *COLORS}
    assert len(words("train")) > 300 and len(words("tune")) == len(words("report")) == 90


@pytest.mark.parametrize("split", SPLITS)
def test_prompts_are_every_word_in_every_pair_and_the_first_of_them_stand_for_all(split):
    made = load_prompts(f"words:{split}")
    signs = [parse_prompt(prompt.text) for prompt in made]
    assert len(set(signs)) == len(signs) == len(words(split)) * len(PAIRS)
    assert [prompt.metadata["text"] for prompt in made] == [sign.word for sign in signs]
    assert all(target_of(prompt.text, {}) == prompt.metadata["text"] for prompt in made)
    first = signs[: len(words(split))]
    assert {sign.word for sign in first} == set(words(split))
    assert {(sign.ink, sign.paper) for sign in first[:16]} == set(PAIRS)
    assert {len(sign.word) for sign in first[:16]} == {3, 4, 5}


def test_refusals():
    for text in ('the word "at" in red on white', 'the word "cat" in red on blue', "the word cat in red on white", ""):
        with pytest.raises(DiffrlError, match="A prompt of the world of words is"):
            parse_prompt(text)


def test_a_picture_is_ink_on_paper_in_a_random_face():
    sign = Sign("quiz", "blue", "yellow")
    pictures = [render(sign, np.random.default_rng(seed)) for seed in range(30)]
    assert {picture.shape for picture in pictures} == {(HEIGHT, WIDTH, 3)} and pictures[0].dtype == np.uint8
    assert len({picture.tobytes() for picture in pictures}) == 2
    assert len({render(sign, np.random.default_rng(seed), spread=True).tobytes() for seed in range(30)}) == 6
    for picture in pictures:
        flat = picture.reshape(-1, 3).tolist()
        assert list(COLORS["blue"]) in flat and flat[0] == flat[-1] == list(COLORS["yellow"])
        assert (picture[:, :7] == picture[0, 0]).all() and (picture[:, 8:40] != picture[0, 0]).any()


@pytest.mark.long
def test_truth_is_read_and_another_word_is_not():
    pytest.importorskip("rapidocr")
    rng, asked = np.random.default_rng(0), [prompt for split in SPLITS for prompt in prompts(split)[:80]]
    pictures = torch.from_numpy(np.stack([render(parse_prompt(prompt.text), rng) for prompt in asked]))
    pictures, texts = pictures.permute(0, 3, 1, 2), [prompt.text for prompt in asked]
    exact = load_reward("ocr_exact", detect=False, threads=1)
    assert exact(RewardBatch(pictures, texts)).raw.mean() >= 0.97
    assert exact(RewardBatch(pictures, texts[1:] + texts[:1])).raw.mean() == 0
