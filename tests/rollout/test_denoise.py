"""Forests from noise to latents: against one path at a time, with noise that can be read off, and on a real network."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.distributions import Normal

from diffrl.functional.dynamics import Step
from diffrl.functional.steps import coarse_levels
from diffrl.models.loading import load_adapter
from diffrl.records import Edges
from diffrl.rollout.address import Address
from diffrl.rollout.denoise import Sampler, denoise
from diffrl.rollout.noise import noise_at
from diffrl.rollout.observers import EdgeRecorder, take_origins
from diffrl.rollout.tree import chains, plan_forest, root_addresses, subset
from tests.rollout.oracle import (
    BATCH,
    GROUPS,
    ITERATION,
    SEED,
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


def test_chains_without_noise_are_the_ode():
    adapter, prompt = FakeAdapter(), torch.tensor([2, 0, 2, 1])
    roots = [Address("eval", 0, 0, 0, i) for i in range(4)]
    conditioning = adapter.encode_prompts([prompt.text for prompt in BATCH.prompts])
    sampler = Sampler(adapter.sigmas(5), micro_batch=3)
    recorder = EdgeRecorder(chains(prompt))
    latents = denoise(adapter, conditioning, chains(prompt), roots, sampler, observe=[recorder])
    net, sigmas = net_of(adapter), sampler.sigmas.double().tolist()
    for row in range(4):
        x = noise_at([roots[row]], adapter.shape)[0].double()
        for s, n in zip(sigmas, sigmas[1:], strict=False):
            x = x - (s - n) * net(x, s, int(prompt[row]))
        close(latents[row], x)
    edges = recorder.edges()
    assert len(edges) == 0 and edges.latents.shape == (0, *adapter.shape)
    assert edges.origin.dtype == edges.node.dtype == edges.step.dtype == torch.int64


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_one_origin_serves_all_its_children():
    case = Case({0: 2, 2: 1, 3: 3})
    edges, forest = case.draw(FakeAdapter()).edges, case.forest
    width = {0: 2, 2: 1, 3: 3}
    assert Counter(edges.step.tolist()) == {0: 6, 2: 12, 3: 12}
    for origin, count in Counter(edges.origin.tolist()).items():
        assert count == width[int(edges.step[origin])]
        nodes = edges.node[edges.origin == origin]
        assert len(forest.parent[nodes].unique()) == 1 and forest.child[nodes].tolist() == list(range(count))
    assert edges.origin.tolist() == sorted(edges.origin.tolist())
    ending = {int(node): row for row, node in enumerate(edges.node)}
    for row in (edges.edge_step == 3).nonzero().flatten().tolist():  # step 3 begins where step 2 ended
        before = ending[int(forest.parent[edges.node[row]])]
        assert torch.equal(edges.latents[edges.origin[row]], edges.next_latents[before])
    assert (
        len(edges.stored) == 6 + 12 + 12 + 12 + 36
    )  # roots; ends of 0; beginnings of 2, not its ends; ends of 2; of 3


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


def test_the_last_step_has_no_noise():
    case, adapter = Case(dict.fromkeys(range(6), 1)), FakeAdapter()
    drawn = case.draw(adapter)
    assert drawn.edges.sigma_next.min() > 0 and drawn.edges.step.max() == 5
    last = drawn.edges.next_latents[drawn.edges.edge_step == 5]
    sigma = adapter.sigmas(7)[6]
    for row, key in enumerate(case.sample_keys()):
        x = last[row].double()
        close(drawn.latents[row], x - float(sigma) * net_of(adapter)(x, float(sigma), key[0]))


# --- noise that can be read off ---------------------------------------------------------------------------------------


class WideAdapter(FakeAdapter):
    shape = (60,)

    def velocity(self, latents, sigma, conditioning, guidance_scale):
        return torch.zeros_like(latents)


def bare_noise(forest, correlation, seed=SEED, levels=None, steps=7):
    """Noise of each node by the library's own denoising, whose transition returns nothing else; roots are 0."""
    adapter = WideAdapter()
    sampler = Sampler(
        adapter.sigmas(steps), levels, lambda x, v, s, n: Step(torch.zeros_like(x), torch.ones(1, 1)), correlation
    )
    roots = root_addresses(forest, BATCH, seed)
    recorder = EdgeRecorder(forest)
    denoise(adapter, {"gain": torch.zeros(3)}, forest, roots, sampler, observe=[recorder])
    edges = recorder.edges()
    noise = torch.zeros(len(forest.parent), 60)
    noise[edges.node] = edges.next_latents
    return noise


def test_noise_of_chains_has_zeros_for_a_path():
    forest = plan_forest(3, 2, dict.fromkeys([1, 2, 4], 1))
    noise = bare_noise(forest, 4.0)
    for node, (prompt, root, _) in enumerate(node_keys(forest)):
        step = int(forest.step[node])
        if step >= 0:
            address = Address("train", SEED, ITERATION, GROUPS[prompt], root, (0,) * (step + 1))
            assert torch.equal(noise[node], noise_at([address], (60,))[0])


def test_noise_of_a_tree_is_addressed_by_its_path():
    forest = plan_forest(3, 2, {1: 2, 2: 1, 4: 3})
    noise = bare_noise(forest, 0.5)
    for node, (prompt, root, taken) in enumerate(node_keys(forest)):
        if not taken:
            continue
        full = [0] * (int(forest.step[node]) + 1)  # one index a step of the full grid
        for step, child in zip((1, 2, 4), taken, strict=False):
            full[step] = child
        base = Address("train", SEED, ITERATION, GROUPS[prompt], root, tuple(full))
        own = noise_at([base], (60,))[0]
        if int(forest.step[node]) == 2:
            assert torch.equal(noise[node], own)
        else:
            shared = noise_at([base._replace(path=(*full[:-1], -1))], (60,))[0]
            torch.testing.assert_close(noise[node], (shared + 0.5 * own) / math.sqrt(1.25), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "levels", [(0, 1, 2, 3, 4, 5, 11), (0, 1, 4, 5, 8, 9, 11), coarse_levels(11, (0, 4), 5)], ids=str
)
@pytest.mark.parametrize("correlation", [4.0, math.inf])
def test_a_coarse_grid_draws_the_same_noise(levels, correlation):
    forest = plan_forest(3, 2, {0: 3, 4: 2})
    full, coarse = (bare_noise(forest, correlation, levels=grid, steps=11) for grid in (None, levels))
    assert torch.equal(full, coarse)
    part = subset(forest, torch.tensor([4, 19, 35]))
    keys = node_keys(forest)
    rows = [keys.index(key) for key in node_keys(part)]
    assert torch.equal(bare_noise(part, correlation, levels=levels, steps=11), full[rows])


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("c", [0.0, 0.5, 1.0, 4.0, math.inf])
def test_siblings_are_unit_normal_and_correlate_as_stated(c, seed):
    forest = plan_forest(3, 53, {0: 3, 3: 2})
    noise = bare_noise(forest, c, seed).double()
    first = noise[forest.step == 0].reshape(3 * 53, 3, 60)
    second = noise[forest.step == 3].reshape(3 * 53 * 3, 2, 60)
    stated = 0.0 if c == math.inf else 1 / (1 + c * c)

    def correlation(a, b):
        return float((a * b).mean()), 4 * math.sqrt(1 + stated**2) / math.sqrt(a.numel())

    for siblings in (first, second):
        for k in range(siblings.shape[1]):
            values = siblings[:, k]
            assert abs(float(values.mean())) < 4 / math.sqrt(values.numel())
            assert abs(float(values.var()) - 1) < 4 * math.sqrt(2 / values.numel())
        for i, j in [(0, 1), (0, siblings.shape[1] - 1), (siblings.shape[1] - 1, 1)]:
            if i != j:
                found, tolerance = correlation(siblings[:, i], siblings[:, j])
                assert abs(found - stated) < tolerance
    strangers = [
        (first[:-1, 0], first[1:, 0]),  # other trees
        (second[0::3, 0], second[1::3, 0]),  # cousins
        (first.reshape(-1, 60), second[:, 0]),  # parent and child
    ]
    for a, b in strangers:
        assert abs(float((a * b).mean())) < 4 / math.sqrt(a.numel())


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


def test_parts_of_parts_name_the_same_edges():
    edges = FOREST.draw(FakeAdapter()).edges
    first, rows = take_origins(edges, torch.tensor([9, 2, 40, 17]))
    second, again = take_origins(first, torch.tensor([3, 0]))
    direct, expected = take_origins(edges, torch.tensor([17, 9]))
    assert torch.equal(rows[again], expected) and torch.equal(second.next_latents, direct.next_latents)
    assert torch.equal(second.origin, direct.origin)


# --- a real network ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sd3(random_sd3):
    return load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))


def test_a_forest_of_a_real_pipeline_is_its_paths(sd3):
    case = Case({0: 2, 2: 1, 3: 2}, steps=5, solver="ab2", roots=1)
    drawn = case.draw(sd3, predict=True, micro_batch=5)
    walked = walk(case, net_of(sd3, dtype=torch.float32), (4, 8, 8), sd3.sigmas(5), case.sample_keys())
    check_against_paths(case, sd3, (4, 8, 8), drawn, case.forest, case.sample_keys(), walked)


def test_a_chosen_path_of_a_real_pipeline_is_that_of_the_tree(sd3):
    case = Case({0: 2, 3: 2}, steps=5, guidance=2.5)
    chosen = torch.tensor([3, 9, 10, 22])
    whole, part = case.draw(sd3), case.draw(sd3, subset(case.forest, chosen), micro_batch=3)
    torch.testing.assert_close(part.latents, whole.latents[chosen], rtol=1e-4, atol=1e-5)
    ends = node_keys(case.forest)
    row = {ends[int(node)]: i for i, node in enumerate(whole.edges.node)}
    nodes = node_keys(subset(case.forest, chosen))
    same = torch.tensor([row[nodes[int(node)]] for node in part.edges.node])
    torch.testing.assert_close(part.edges.old_log_prob, whole.edges.old_log_prob[same], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(part.edges.next_latents, whole.edges.next_latents[same], rtol=1e-4, atol=1e-5)
    unguided = Case({0: 2, 3: 2}, steps=5).draw(sd3)
    assert (unguided.latents - whole.latents).abs().max() > 1e-3
