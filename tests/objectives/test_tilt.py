"""Tree tilt's examples and loss on uneven forests, against loops that walk from each node down."""

from dataclasses import replace

import pytest
import torch

from diffrl.functional.covariance import between_variance
from diffrl.functional.gaussian import log_prob
from diffrl.objectives.tilt import Tilt
from diffrl.records import Credit, Edges, Forest, Prompt, PromptBatch, Rollout
from diffrl.rollout.tree import plan_forest, subset
from tests.objectives.steps import SHAPE, Network, transition

WHOLE = plan_forest(2, 2, {0: 3, 2: 1, 3: 2})
"""Two prompts, two roots each: a split of 3, a stochastic step that does not split, a split of 2; 24 samples."""
CHOSEN = subset(WHOLE, torch.tensor([0, 1, 2, 5, 6, 8, 12, 13, 14, 15, 18, 23]))
"""Some of its samples: nodes with all, some and one of their children."""


def rollout_of(forest: Forest) -> Rollout:
    """Every stochastic step recorded, with the densities of `Network()`; latents at the end are the leaves' own."""
    latents = torch.randn(len(forest.parent), *SHAPE, generator=torch.Generator().manual_seed(11))
    node = torch.nonzero(forest.parent >= 0).flatten()
    parents, origin = forest.parent[node].unique(return_inverse=True)
    step = torch.tensor([int(forest.step[forest.parent == parent][0]) for parent in parents])
    sigma, at = 0.9 - 0.15 * step, latents[parents]
    v = Network()(at, sigma, forest.prompt[parents]).detach()
    mean, std = transition(at, v, sigma, sigma - 0.1)
    density = log_prob(latents[node], mean[origin], std[origin])
    edges = Edges(latents, parents, sigma, sigma - 0.1, step, forest.prompt[parents], origin, node, node, density)
    batch = PromptBatch([Prompt("one"), Prompt("two")], [0, 1], 0)
    clean = torch.randn(len(forest), *SHAPE, generator=torch.Generator().manual_seed(5))
    return Rollout(batch, forest, torch.linspace(1, 0, 6), clean, torch.zeros(len(forest), 3, 4, 4), edges)


def credit_of(forest: Forest, unused=()) -> Credit:
    """Random advantages of samples; those that are not used have one that must not matter."""
    outcome = torch.randn(len(forest), generator=torch.Generator().manual_seed(2))
    used = torch.ones(len(forest), dtype=torch.bool)
    for sample in unused:
        used[sample], outcome[sample] = False, 1e6
    none = torch.zeros(len(forest.parent))
    return Credit(none, outcome, used, none, none, none.bool(), 0, 0)


def examples_of(objective, rollout, credit, kept=None):
    kept = rollout.forest.parent >= 0 if kept is None else kept
    return objective.examples(rollout, credit, kept, Network(), 4)


def samples_below(forest, node):
    """Samples below a node, each with the child of the node that leads to it."""
    found = []
    for child in torch.nonzero(forest.parent == node).flatten().tolist():
        below = {child}
        for other in range(child + 1, len(forest.parent)):
            if int(forest.parent[other]) in below:
                below.add(other)
        found += [(sample, child) for sample, leaf in enumerate(forest.leaf.tolist()) if leaf in below]
    return found


def naive(rollout, credit, node, kept):
    """The mean over pairs of samples of different children; None without any."""
    own = [(s, c) for s, c in samples_below(rollout.forest, node) if credit.used[s] and kept[c]]
    a, x = credit.outcome.double(), rollout.latents.double()
    pairs = [(a[i] - a[j]) * (x[i] - x[j]) / 2 for i, c in own for j, other in own if c != other]
    return (sum(pairs) / len(pairs)).float() if pairs else None


@pytest.mark.parametrize("forest", [WHOLE, CHOSEN], ids=["whole", "chosen"])
@pytest.mark.parametrize("unused", [(), (1, 3, 4, 6)], ids=["all", "some"])
@pytest.mark.parametrize("pruned", [False, True])
def test_each_split_has_the_covariance_of_what_lies_below_it(forest, unused, pruned):
    rollout, credit = rollout_of(forest), credit_of(forest, unused)
    kept = forest.parent >= 0
    if pruned:
        kept = kept & (torch.arange(len(forest.parent)) % 5 != 2)
    examples = examples_of(Tilt(transition), rollout, credit, kept)
    first = {int(o): int(forest.parent[n]) for o, n in zip(rollout.edges.origin, rollout.edges.node, strict=True)}
    nodes = [first[o] for o in range(len(rollout.edges.step)) if forest.branching[int(rollout.edges.step[o])] > 1]
    assert len(examples.active) == len(nodes)
    trained = 0
    for row, node in enumerate(nodes):
        expected = naive(rollout, credit, node, kept)
        assert bool(examples.active[row]) == (expected is not None)
        torch.testing.assert_close(
            examples.direction[row], torch.zeros(SHAPE) if expected is None else expected, rtol=1e-4, atol=1e-5
        )
        own = [o for o in range(len(rollout.edges.step)) if first[o] == node]
        assert torch.equal(examples.latents[row], rollout.edges.latents[own[0]])
        assert int(examples.prompt[row]) == int(forest.prompt[node])
        trained += expected is not None
    assert trained >= 3
    if forest is CHOSEN or unused or pruned:
        assert trained < len(nodes)


def test_a_node_whose_leaves_score_alike_is_not_evaluated_unless_the_reference_pulls():
    rollout, credit = rollout_of(WHOLE), credit_of(WHOLE, unused=(0, 1))
    level = replace(credit, outcome=torch.where(WHOLE.sample_root == 0, 0.3, credit.outcome))
    plain, pulled = (examples_of(Tilt(transition, kl), rollout, level) for kl in (0.0, 0.1))
    root_of = WHOLE.root[torch.tensor([int(n) for n in WHOLE.parent[rollout.edges.node]])]
    own = torch.stack([root_of[rollout.edges.origin == o][0] for o in range(len(rollout.edges.step))])
    own = own[[WHOLE.branching[int(step)] > 1 for step in rollout.edges.step]]
    assert torch.equal(plain.active, own == 1)
    assert int((~pulled.active).sum()) == 1  # the last split above the two samples that are not used


def scores_of(forest, credit, kept, nodes, directions, by):
    """Each node's score, one by one."""
    scores = []
    for node, direction in zip(nodes, directions, strict=True):
        used = [(s, c) for s, c in samples_below(forest, node) if credit.used[s] and kept[c]]
        samples, children = torch.tensor(used, dtype=torch.int64).reshape(-1, 2).unbind(1)
        spread = between_variance(credit.outcome[samples], torch.zeros_like(samples), children, 1)
        score = {"contrast": float(spread), "direction": float(direction.square().mean().sqrt())}[by]
        scores.append(score if float(direction.abs().max()) else -1.0)
    return scores


@pytest.mark.parametrize("by", ["contrast", "direction"])
@pytest.mark.parametrize(("keep", "count"), [(1, 1), (3, 3), (0.3, 3), (7, 7), (8, 8)])
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_the_nodes_of_each_prompt_with_the_largest_scores_train(by, keep, count, kl):
    """8 of each prompt: two roots, and three below each; pruned, and with samples that are not used."""
    rollout, credit = rollout_of(WHOLE), credit_of(WHOLE, unused=(1, 3, 4, 12, 13))
    kept = (WHOLE.parent >= 0) & (torch.arange(len(WHOLE.parent)) % 11 != 5)
    every = examples_of(Tilt(transition, kl), rollout, credit, kept)
    some = examples_of(Tilt(transition, kl, keep=keep, by=by), rollout, credit, kept)
    scores = scores_of(WHOLE, credit, kept, every.node.tolist(), every.direction, by)
    assert torch.equal(some.direction, every.direction) and every.chosen.all()
    for row in (0, 1):
        own = torch.nonzero(every.prompt == row).flatten().tolist()
        best = sorted(own, key=lambda unit: (-scores[unit], unit))[:count]
        assert len(own) == 8 and torch.nonzero(some.chosen & (some.prompt == row)).flatten().tolist() == sorted(best)
    assert torch.equal(some.active, every.active & some.chosen)
    objective = Tilt(transition, keep=keep)
    assert objective.idle_units(some) == 2 * count - int(some.active.sum())
    assert objective.idle_units(every) == int((~every.active).sum())


def test_among_equal_scores_the_first_nodes_train():
    rollout, credit = rollout_of(WHOLE), credit_of(WHOLE)
    alike = replace(credit, outcome=(torch.arange(len(WHOLE)) % 2).float())  # the last splits all differ by as much
    chosen = examples_of(Tilt(transition, keep=4), rollout, alike).chosen
    assert torch.nonzero(chosen).flatten().tolist() == [4, 5, 6, 7, 10, 11, 12, 13]


def test_random_nodes_are_those_of_seed_iteration_and_group():
    rollout, credit = rollout_of(WHOLE), credit_of(WHOLE, unused=(0, 1))

    def chosen(seed=5, groups=(0, 1), iteration=0):
        batch = replace(rollout.batch, groups=list(groups), iteration=iteration)
        objective = Tilt(transition, seed=seed, keep=0.4, by="random")
        examples = examples_of(objective, replace(rollout, batch=batch), credit)
        assert (examples.active == examples.chosen).all()  # one without direction is not among four of eight
        return [examples.chosen[examples.prompt == row].tolist() for row in (0, 1)]

    first = chosen()
    assert first == chosen() and [sum(row) for row in first] == [4, 4] and first[0] != first[1]
    assert chosen(groups=(3, 1))[1] == first[1] and chosen(groups=(3, 1))[0] != first[0]
    assert chosen(seed=6) != first and chosen(iteration=1) != first


@pytest.mark.parametrize("kl", [0.0, 0.4])
def test_loss_and_gradient_are_those_of_the_regression(kl):
    rollout, credit = rollout_of(WHOLE), credit_of(WHOLE, unused=(1, 3))
    objective, policy, reference = Tilt(transition, kl), Network(), Network(0.1)
    examples = examples_of(objective, rollout, credit)
    rows = torch.nonzero(examples.active).flatten()
    loss, metrics = objective.loss(examples.take(rows), policy, reference if kl else None)
    assert loss.shape == rows.shape and metrics.keys() == set(objective.metrics)
    loss.sum().backward()
    again, total = Network(), torch.zeros(())
    for row in rows.tolist():
        x, sigma, prompt = (column[row : row + 1] for column in examples.start)
        prediction = (x - sigma * again(x, sigma, prompt))[0]
        scale = (prediction.detach() - examples.centre[row]).abs().mean()
        target = prediction.detach() + examples.direction[row]
        total = total + (prediction - target).square().mean() / scale
        gap = again(x, sigma, prompt) - reference(x, sigma, prompt).detach()
        total = total + kl * gap.square().mean()
    total.backward()
    assert float(policy.weight.grad) == pytest.approx(float(again.weight.grad), rel=1e-4)


def test_the_gate_sees_other_weights_and_other_latents():
    rollout = rollout_of(CHOSEN)
    found = Tilt(transition).on_policy_errors(rollout, Network(), 3)
    assert [step for step, _ in found] == [0, 3] and max(error for _, error in found) < 1e-6
    moved = dict(Tilt(transition).on_policy_errors(rollout, Network(0.301), 3))
    assert min(moved.values()) > 1e-5
    edges = rollout.edges
    apart = {"stored": torch.cat([edges.latents, edges.next_latents]), "before": torch.arange(len(edges.step))}
    apart["after"] = len(edges.step) + torch.arange(len(edges))
    apart["stored"][: len(edges.step)] += 1e-3 * (edges.step == 3).reshape(-1, 1, 1, 1)
    off = replace(rollout, edges=replace(edges, **apart))
    shifted = dict(Tilt(transition).on_policy_errors(off, Network(), 3))
    assert shifted[0] < 1e-6 and shifted[3] > 1e-5
