"""Completions against one node at a time in float64, and against the samples that they must coincide with."""

import pytest
import torch

from diffrl.models.loading import load_adapter
from diffrl.rollout.complete import complete, inner_nodes
from diffrl.rollout.tree import chains, plan_forest, root_addresses, subset
from tests.rollout.oracle import BATCH, SEED, Case, FakeAdapter, deterministic, net_of, node_keys, walk

CASES = [
    Case(dict.fromkeys(range(6), 1)),
    Case({2: 1}, solver="ab2"),
    Case({0: 2, 3: 3}, solver="ab2"),
    Case({1: 2, 2: 1, 5: 2}, solver="ab2", kind="cps", guidance=1.7),
    Case({5: 3, 4: 1}, kind="dance_sde", solver="ab2", roots=3),
    Case({0: 1, 1: 1, 2: 1}, solver="ode"),
]


def completions(case, adapter, forest=None, micro_batch=128):
    forest = case.forest if forest is None else forest
    edges = case.draw(adapter, forest).edges
    adapter.rows = []
    conditioning = adapter.encode_prompts([prompt.text for prompt in BATCH.prompts])
    roots = root_addresses(forest, BATCH, SEED)
    return complete(adapter, conditioning, forest, roots, edges, case.sampler(adapter, micro_batch))


def naive(case, adapter, shape, keys, inner, dtype=torch.float64):
    """Each inner node's latents from its own path, and from there one deterministic step after another."""
    net, sigmas = net_of(adapter, case.guidance, dtype), adapter.sigmas(case.steps)
    walked, levels, ordered = walk(case, net, shape, sigmas, keys), sigmas.double().tolist(), sorted(case.branching)
    ends = []
    for key in inner:
        x, before = walked.latents[key], None
        first = ordered[len(key[2]) - 1] + 1 if key[2] else 0
        for s, n in zip(levels[first:], levels[first + 1 :], strict=False):
            v = net(x, s, key[0])
            x, before = deterministic(case.solver, x, v, s, n, before), (v, s)
        ends.append(x)
    return torch.stack(ends)


def inner_keys(forest, branching):
    """Nodes with noise ahead, in the forest's order."""
    return [key for key in node_keys(forest) if len(key[2]) < len(branching)]


@pytest.mark.parametrize("micro_batch", [5, 128])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_inner_node_ends_where_it_would_alone(case, micro_batch):
    adapter = FakeAdapter()
    found = completions(case, adapter, micro_batch=micro_batch)
    rows, inner = adapter.rows, inner_keys(case.forest, case.branching)
    assert max(rows) <= micro_batch
    first = [sorted(case.branching)[len(path) - 1] + 1 if path else 0 for _, _, path in inner]
    assert sum(rows) == sum(case.steps - level for level in first)
    assert [node_keys(case.forest)[node] for node in inner_nodes(case.forest)] == inner
    expected = naive(case, adapter, adapter.shape, case.sample_keys(), inner)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=2e-5)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("chosen", [[0], [3, 4, 19], [5, 11, 17, 23, 35]], ids=str)
def test_completions_of_chosen_paths(chosen):
    case, adapter = Case({0: 2, 3: 3, 4: 1}, solver="ab2"), FakeAdapter()
    forest = subset(case.forest, torch.tensor(chosen))
    part, whole = completions(case, adapter, forest), completions(case, adapter, micro_batch=7)
    places = {key: row for row, key in enumerate(inner_keys(case.forest, case.branching))}
    keys = inner_keys(forest, case.branching)
    assert len(part) == len(keys) and torch.equal(part, whole[[places[key] for key in keys]])


def test_nothing_lies_inside_a_forest_without_noise():
    assert inner_nodes(plan_forest(3, 2, {})).tolist() == []
    assert inner_nodes(chains(torch.tensor([0, 1]))).tolist() == []
    assert inner_nodes(plan_forest(1, 2, {0: 2, 1: 1})).tolist() == [0, 1, 2, 3, 4, 5]


def test_completions_of_a_real_pipeline(random_sd3):
    adapter = load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))
    case = Case({0: 2, 2: 2}, steps=5, solver="ab2", roots=1)
    found = completions(case, adapter, micro_batch=4)
    inner = inner_keys(case.forest, case.branching)
    expected = naive(case, adapter, (4, 8, 8), case.sample_keys(), inner, torch.float32)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=2e-5)
