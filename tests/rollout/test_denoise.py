"""Forests from noise to latents: against one path at a time, with noise that can be read off, and on a real network."""

import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import Normal

from diffrl.models.loading import load_adapter
from diffrl.records import Edges
from diffrl.rollout.observers import take_origins
from diffrl.rollout.tree import subset
from tests.rollout.oracle import (
    Case,
    FakeAdapter,
    draw_noise,
    gaussian,
    net_of,
    node_keys,
    walk,
)

CASES = [
    Case(),
    Case(solver="ab2"),
    Case(dict.fromkeys(range(6), 1)),
    Case({2: 1, 3: 1}, solver="ab2", kind="cps"),
    Case({0: 2, 3: 3}, solver="ab2"),
    Case({0: 2, 3: 3}, kind="dance_sde", correlation=0.5),
    Case({0: 2, 3: 3}, solver="ab2", levels=(0, 1, 3, 4, 7)),
    Case({2: 5}, levels=(0, 2, 3, 4, 5, 7), kind="cps", solver="ab2", guidance=1.7),
    Case({0: 3, 1: 1, 2: 2, 3: 1, 4: 1, 5: 1}, roots=1),
    Case({1: 2, 3: 1, 4: 1, 5: 2}, correlation=math.inf, solver="ab2", kind="dance_sde", roots=3),
    Case({5: 2}, roots=1, kind="cps", correlation=0.0),
    Case({3: 2}, steps=11, levels=(0, 2, 3, 4, 7, 11), solver="ab2"),
]
FOREST = Case({0: 2, 2: 1, 3: 3, 4: 1}, solver="ab2")
SUBSETS = [[0], [23], [1, 2, 5, 11, 30], list(range(0, 36, 5)), list(range(6, 12))]


def close(found, expected):
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=2e-5)


def check_against_paths(case, adapter, shape, drawn, forest, keys, walked):
    """Samples, nodes and edges, whole records against dictionaries filled path by path."""
    nodes = node_keys(forest)
    assert drawn.latents.shape == (len(keys), *shape)
    for row, key in enumerate(keys):
        close(drawn.latents[row], walked.ends[key])
    if drawn.predicted is not None:
        assert len(drawn.predicted) == len(nodes)
        for row, key in enumerate(nodes):
            close(drawn.predicted[row], walked.predicted[key])
    edges = drawn.edges
    assert sorted(nodes[node] for node in edges.node) == sorted(walked.edges)  # each once
    assert len(edges) == len(edges.next_latents) == len(edges.old_log_prob) == len(edges.node)
    assert len(edges.step) == len(edges.latents) == len(edges.sigma) == len(edges.sigma_next) == len(edges.prompt)
    for row in range(len(edges)):
        key, origin = nodes[edges.node[row]], int(edges.origin[row])
        expected = walked.edges[key]
        assert int(edges.step[origin]) == int(edges.edge_step[row]) == expected.step
        assert int(edges.prompt[origin]) == key[0] and int(forest.step[edges.node[row]]) == expected.step
        assert float(edges.sigma[origin]) == expected.sigma and float(edges.sigma_next[origin]) == expected.sigma_next
        close(edges.latents[origin], expected.latents)
        close(edges.next_latents[row], expected.next_latents)
        close(edges.old_log_prob[row], expected.log_prob)


# --- against one path at a time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batch", [5, 128])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_forest_is_its_paths(case, micro_batch):
    adapter = FakeAdapter()
    drawn = case.draw(adapter, predict=True, micro_batch=micro_batch)
    rows = list(adapter.rows)
    walked = walk(case, net_of(adapter, case.guidance), adapter.shape, adapter.sigmas(case.steps), case.sample_keys())
    check_against_paths(case, adapter, adapter.shape, drawn, case.forest, case.sample_keys(), walked)
    assert sum(rows) == len(walked.evaluations) and max(rows) <= micro_batch  # shared prefixes once
    assert drawn.latents.dtype == drawn.edges.old_log_prob.dtype == torch.float32
    for name in ("step", "prompt", "origin", "node"):
        assert getattr(drawn.edges, name).dtype == torch.int64


@pytest.mark.parametrize("chosen", SUBSETS, ids=str)
def test_chosen_paths_are_walked_like_the_whole_tree(chosen):
    case, adapter, samples = FOREST, FakeAdapter(), torch.tensor(chosen)
    forest = subset(case.forest, samples)
    keys = [case.sample_keys()[row] for row in chosen]
    drawn = case.draw(adapter, forest, predict=True)
    rows = sum(adapter.rows)
    walked = walk(case, net_of(adapter), adapter.shape, adapter.sigmas(7), keys)
    check_against_paths(case, adapter, adapter.shape, drawn, forest, keys, walked)
    assert rows == len(walked.evaluations)
    whole = case.draw(adapter, predict=True)
    assert torch.equal(drawn.latents, whole.latents[samples])
    places = {key: row for row, key in enumerate(node_keys(case.forest))}
    old = torch.tensor([places[key] for key in node_keys(forest)])  # each node's row in the whole forest
    assert torch.equal(drawn.predicted, whole.predicted[old])
    edge_of = {int(node): row for row, node in enumerate(whole.edges.node)}
    same = torch.tensor([edge_of[int(node)] for node in old[drawn.edges.node]])
    mine, theirs = drawn.edges, whole.edges
    assert torch.equal(mine.next_latents, theirs.next_latents[same])
    assert torch.equal(mine.latents[mine.origin], theirs.latents[theirs.origin[same]])
    torch.testing.assert_close(mine.old_log_prob, theirs.old_log_prob[same], rtol=1e-6, atol=1e-7)


def test_latents_that_are_stored_in_bfloat16_are_what_was_drawn_and_scored():
    case, adapter = replace(FOREST, latents_dtype=torch.bfloat16), FakeAdapter()
    drawn, sigmas, nodes = case.draw(adapter), adapter.sigmas(7).double().tolist(), node_keys(case.forest)
    edges, net, ends, begun = drawn.edges, net_of(adapter), {}, {}
    assert edges.stored.dtype == torch.bfloat16 and edges.latents.dtype == drawn.latents.dtype == torch.float32
    for row, (prompt, root, choices) in enumerate(nodes[node] for node in edges.node):
        origin = int(edges.origin[row])
        x, moved = edges.latents[origin].double(), edges.next_latents[row].double()
        s, n = float(edges.sigma[origin]), float(edges.sigma_next[origin])
        mean, std = gaussian(case.kind, x, net(x, s, prompt), s, n, sigmas[1])
        close(edges.old_log_prob[row], Normal(mean, std).log_prob(moved).mean())  # of what is stored, not of what was
        path = tuple(int(i) for i in edge_path(case, choices))
        noise, c = draw_noise((prompt, root, ()), path, adapter.shape), case.correlation
        if case.branching[int(edges.edge_step[row])] > 1:
            shared = draw_noise((prompt, root, ()), (*path[:-1], -1), adapter.shape)
            noise = (shared + c * noise) / math.sqrt(1 + c**2)
        torch.testing.assert_close(moved, mean + std * noise, rtol=2**-8, atol=1e-4)
        ends[prompt, root, choices], begun[prompt, root, choices[:-1], int(edges.edge_step[row])] = moved, x
    for (prompt, root, choices, step), x in begun.items():
        if step - 1 in case.branching:  # where one noisy step follows another, it begins with what the other ended in
            assert torch.equal(x, ends[prompt, root, choices])


def edge_path(case, choices):
    """Child indices from the root to the end of the last of these choices, deterministic steps among them."""
    steps = sorted(case.branching)[: len(choices)]
    chosen = dict(zip(steps, choices, strict=True))
    return [chosen.get(step, 0) for step in range(steps[-1] + 1)]


@pytest.mark.parametrize("micro_batch", [1, 5, 7])
def test_micro_batches_change_no_bit(micro_batch):
    whole, parts = (FOREST.draw(FakeAdapter(), predict=True, micro_batch=size) for size in (128, micro_batch))
    assert torch.equal(whole.latents, parts.latents) and torch.equal(whole.predicted, parts.predicted)
    for name in Edges.__dataclass_fields__:
        assert torch.equal(getattr(whole.edges, name), getattr(parts.edges, name))


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_every_latent_of_a_chain_is_stored_once():
    case = Case(dict.fromkeys(range(6), 1))
    edges = case.draw(FakeAdapter()).edges
    assert len(edges.stored) == len(edges.stored.flatten(1).unique(dim=0)) == 6 + len(edges)
    assert edges.before[6:].tolist() == edges.after[:-6].tolist()
    part = take_origins(edges, torch.tensor([7, 2]))[0]
    assert part.stored.data_ptr() == edges.stored.data_ptr(), "a micro-batch copies none of them"


@pytest.mark.parametrize("record", [(), (0,), (3,), (4, 2), (0, 2, 3, 4)], ids=str)
def test_only_the_asked_steps_are_recorded(record):
    adapter = FakeAdapter()
    whole, some = FOREST.draw(adapter), FOREST.draw(adapter, record=record)
    assert torch.equal(whole.latents, some.latents)
    wanted = torch.tensor([step in record for step in whole.edges.edge_step.tolist()])
    assert torch.equal(some.edges.node, whole.edges.node[wanted])
    assert torch.equal(some.edges.next_latents, whole.edges.next_latents[wanted])
    assert torch.equal(some.edges.old_log_prob, whole.edges.old_log_prob[wanted])
    mine, theirs = some.edges, whole.edges
    assert torch.equal(mine.latents[mine.origin], theirs.latents[theirs.origin[wanted]])
    assert len(mine.step) == sum(step in record for step in theirs.step.tolist())


# --- edges by their origins -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_origins_bring_their_edges(seed):
    edges = FOREST.draw(FakeAdapter()).edges
    generator = torch.Generator().manual_seed(seed)
    count = [0, 1, 7, len(edges.step) - 1, len(edges.step)][seed]
    index = torch.randperm(len(edges.step), generator=generator)[:count]
    keep = torch.rand(len(edges), generator=generator) < 0.6
    for mask in (None, keep, torch.zeros_like(keep)):
        part, rows = take_origins(edges, index, mask)
        expected = [
            row
            for origin in index.tolist()
            for row in range(len(edges))
            if int(edges.origin[row]) == origin and (mask is None or mask[row])
        ]
        assert rows.tolist() == expected and len(part) == len(expected)
        assert part.origin.tolist() == sorted(part.origin.tolist())
        for name in ("latents", "sigma", "sigma_next", "step", "prompt"):
            assert torch.equal(getattr(part, name), getattr(edges, name)[index])
        for name in ("node", "next_latents", "old_log_prob"):
            assert torch.equal(getattr(part, name), getattr(edges, name)[rows])
        assert torch.equal(index[part.origin], edges.origin[rows])


# --- a real network ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sd3(random_sd3):
    return load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))


def test_a_forest_of_a_real_pipeline_is_its_paths(sd3):
    case = Case({0: 2, 2: 1, 3: 2}, steps=5, solver="ab2", roots=1)
    drawn = case.draw(sd3, predict=True, micro_batch=5)
    walked = walk(case, net_of(sd3, dtype=torch.float32), (4, 8, 8), sd3.sigmas(5), case.sample_keys())
    check_against_paths(case, sd3, (4, 8, 8), drawn, case.forest, case.sample_keys(), walked)
