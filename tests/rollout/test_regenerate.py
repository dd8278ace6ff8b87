"""Both stages draw the same pictures from the same addresses; the fake pictures show every bit of the latents."""

from contextlib import contextmanager

import pytest
import torch

from diffrl.rollout.explore import explore, prompt_samples
from diffrl.rollout.regenerate import regenerate
from diffrl.rollout.tree import plan_forest, root_addresses, subset
from tests.rollout.oracle import BATCH, SEED, Case, FakeAdapter

CASE = Case({0: 2, 3: 3}, solver="ab2")
COARSE = Case({0: 2, 3: 3}, solver="ab2", levels=(0, 1, 3, 4, 7))


def arguments(case, adapter, forest, micro_batch=128):
    conditioning = adapter.encode_prompts([prompt.text for prompt in BATCH.prompts])
    return adapter, conditioning, BATCH, forest, root_addresses(forest, BATCH, SEED), case.sampler(adapter, micro_batch)


@contextmanager
def phase(entered, name):
    entered.append(f"{name} in")
    yield
    entered.append(f"{name} out")


@pytest.mark.parametrize("case", [CASE, COARSE], ids=["full", "coarse"])
def test_regenerating_all_gives_the_explored_pictures_bit_by_bit(case):
    adapter, seen = FakeAdapter(), []
    explored = explore(*arguments(case, adapter, case.forest), decode_batch=5, clock=lambda name: phase(seen, name))
    again = regenerate(
        *arguments(case, adapter, case.forest, micro_batch=7), record=[0, 3], decode_batch=36,
        clock=lambda name: phase(seen, name),
    )  # fmt: skip
    assert explored.dtype == torch.uint8 and explored.shape == (36, 3, 2, 20)
    assert torch.equal(explored, again.images)
    assert torch.equal(again.images, again.latents.view(torch.uint8))
    names = [name for stage in ("explore", "decode", "rollout", "decode") for name in (f"{stage} in", f"{stage} out")]
    assert seen == names


def test_chosen_candidates_come_back_bit_by_bit_and_differ_on_a_coarse_grid():
    adapter, chosen = FakeAdapter(), torch.tensor([2, 3, 17, 31])
    explored = explore(*arguments(CASE, adapter, CASE.forest), decode_batch=128)
    rollout = regenerate(
        *arguments(CASE, adapter, subset(CASE.forest, chosen)), record=[0, 3], decode_batch=3, predict=True
    )  # fmt: skip
    assert torch.equal(rollout.images, explored[chosen]) and len(rollout) == 4
    drawn = CASE.draw(adapter, subset(CASE.forest, chosen), predict=True)
    assert rollout.predicted is not None and torch.equal(rollout.predicted, drawn.predicted)
    coarse = explore(*arguments(COARSE, adapter, CASE.forest), decode_batch=128)
    assert not torch.equal(coarse[chosen], rollout.images)


def test_prompt_samples_are_rows_by_prompt():
    forest = plan_forest(3, 2, {0: 2, 1: 3})
    assert [rows.tolist() for rows in prompt_samples(forest)] == [list(range(12 * p, 12 * p + 12)) for p in range(3)]
    part = subset(forest, torch.tensor([1, 5, 13, 24, 25, 35]))
    assert [rows.tolist() for rows in prompt_samples(part)] == [[0, 1], [2], [3, 4, 5]]
