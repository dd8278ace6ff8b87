"""Every prompt once an epoch, by a pure function of seed and iteration."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffrl.data.sampler import prompt_batch, prompt_indices
from diffrl.records import Prompt

PROMPTS = [Prompt(f"prompt {i}") for i in range(11)]


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**63 - 2))
def test_every_prompt_comes_once_an_epoch(count, per_iteration, seed):
    epochs = 3
    drawn = []
    for iteration in range(-(-epochs * count // per_iteration)):
        drawn += prompt_indices(count, per_iteration, seed, iteration)
    assert prompt_indices(97, 97, seed, 0) != prompt_indices(97, 97, seed, 1) != prompt_indices(97, 97, seed + 1, 1)
    for epoch in range(epochs):
        assert sorted(drawn[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_an_iteration_can_be_asked_for_alone():
    in_turn = [prompt_indices(11, 3, 2, i) for i in range(20)]
    assert [prompt_indices(11, 3, 2, i) for i in reversed(range(20))] == in_turn[::-1]


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_batch_out(world):
    whole = prompt_batch(PROMPTS, 6, 4, 7)
    parts = [prompt_batch(PROMPTS, 6, 4, 7, rank, world) for rank in range(world)]
    assert sum((list(part.prompts) for part in parts), []) == list(whole.prompts)
    assert sum((list(part.groups) for part in parts), []) == list(range(6))
    assert {len(part.prompts) for part in parts} == {6 // world} and {part.iteration for part in parts} == {7}


def test_more_prompts_than_there_are():
    batch = prompt_batch(PROMPTS, 25, 0, 0)
    assert len(batch.groups) == len(set(batch.groups)) == 25  # equal prompts, different groups
    assert sorted(Counter(p.text for p in batch.prompts).values()) == [2] * 8 + [3] * 3


def test_an_uneven_share_is_refused():
    with pytest.raises(ValueError, match="per_iteration 5 is not a multiple of world_size 2"):
        prompt_batch(PROMPTS, 5, 0, 0, 0, 2)
