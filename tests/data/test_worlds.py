"""The embedded worlds as prompt sources: what every one of them has, and the noise that belongs to a split."""

from importlib.util import find_spec
from itertools import combinations

import pytest

from diffrl.data.prompts import load_prompts
from diffrl.data.worlds import SOURCES, SPLITS, WORLDS, noise_stream

HERE = [world for world in WORLDS if find_spec(WORLDS[world])]


@pytest.mark.parametrize("world", HERE)
def test_a_world_has_three_splits_with_no_prompt_in_common(world):
    texts = {split: [prompt.text for prompt in load_prompts(f"{world}:{split}")] for split in SPLITS}
    assert all(found and len(set(found)) == len(found) for found in texts.values())
    assert not any(set(texts[a]) & set(texts[b]) for a, b in combinations(SPLITS, 2))
    assert {f"{world}:{split}" for split in SPLITS} <= set(SOURCES)


def test_the_noise_of_evaluations_is_that_of_tune_and_report_has_its_own():
    assert noise_stream("shapes:tune") == noise_stream("words:tune") == noise_stream("my_prompts.txt") == "eval"
    assert len({noise_stream(f"moving:{split}") for split in SPLITS}) == 3
    assert [noise_stream(f"my_prompts.txt@{split}") for split in SPLITS] == ["eval train", "eval", "eval report"]
