"""GRPO's examples and loss on a small forest, against one forward an edge and torch.distributions."""

from dataclasses import replace

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from diffrl.objectives.grpo import GRPO
from diffrl.records import Credit, Edges, Prompt, PromptBatch, Rollout
from diffrl.rollout.tree import plan_forest
from tests.objectives.steps import SHAPE, Network, transition

FOREST = plan_forest(2, 1, {0: 3, 2: 1, 3: 2})
"""Two prompts, one tree each: a node with 3 children, 3 with one each, 3 with 2 each; 12 samples."""
LOW, HIGH, WEIGHT = 0.005, 0.011, 0.7


@pytest.fixture
def rollout():
    """Every edge of the forest, one origin a parent, with densities of a policy a bit off the one at hand."""
    generator = torch.Generator().manual_seed(11)
    forest, latents = FOREST, torch.randn(len(FOREST.parent), *SHAPE, generator=generator)
    node = torch.nonzero(forest.parent >= 0).flatten()
    parents, origin = forest.parent[node].unique(return_inverse=True)
    step = torch.tensor([int(forest.step[forest.parent == parent][0]) for parent in parents])
    sigma = 0.9 - 0.15 * step
    edges = Edges(
        latents, parents, sigma, sigma - 0.1, step, forest.prompt[parents], origin, node, node,
        torch.zeros(len(node)),
    )  # fmt: skip
    old = Network(0.28)
    density = [float(normal(edges, e, old).log_prob(edges.next_latents[e]).mean().detach()) for e in range(len(edges))]
    edges = replace(edges, old_log_prob=torch.tensor(density))
    batch = PromptBatch([Prompt("one"), Prompt("two")], [0, 1], 0)
    return Rollout(batch, forest, torch.linspace(1, 0, 6), latents[forest.leaf], torch.zeros(12, 3, 4, 4), edges)


@pytest.fixture
def credit():
    """Advantages of all edges; none at the whole last level of the second prompt, nor at one child of the first."""
    generator = torch.Generator().manual_seed(5)
    advantage = torch.randn(len(FOREST.parent), generator=generator).masked_fill(FOREST.parent < 0, 0.0)
    advantage[(FOREST.prompt == 1) & (FOREST.step == 3)] = 0.0
    advantage[torch.nonzero(FOREST.step == 0).flatten()[1]] = 0.0
    samples = len(FOREST)
    none = torch.zeros_like(advantage, dtype=torch.bool)
    return Credit(
        advantage, torch.zeros(samples), torch.ones(samples, dtype=torch.bool), advantage, advantage, none, 0, 0
    )


KEPT = FOREST.parent >= 0


def normal(edges, e, network):
    """The step of one edge by a forward pass of its own."""
    origin = edges.origin[e : e + 1]
    sigma = edges.sigma[origin]
    v = network(edges.latents[origin], sigma, edges.prompt[origin])[0]
    return Normal(edges.latents[origin][0] - 2 * v, 0.5 + float(sigma - edges.sigma_next[origin]))


def unasked(*args):
    raise AssertionError("GRPO has no question to the old policy")


def naive(rollout, credit, kept, kl_form="velocity", kl=0.0):
    """Mean over all edges, pruned ones included, of the loss of those that are kept, one forward pass an edge."""
    edges, network, reference = rollout.edges, Network(), Network(0.5)
    total, losses = 0.0, {}
    for e in range(len(edges)):
        node = int(edges.node[e])
        if not kept[node]:
            continue
        step, a = normal(edges, e, network), float(credit.advantage[node])
        ratio = (step.log_prob(edges.next_latents[e]).mean() - edges.old_log_prob[e]).exp()
        loss = torch.maximum(-a * ratio, -a * ratio.clamp(1 - LOW, 1 + HIGH))
        if kl:
            before = normal(edges, e, reference)
            velocity_distance = ((step.mean - before.mean) / 2).square().mean()  # the mean is x - 2 v
            loss = loss + kl * (velocity_distance if kl_form == "velocity" else kl_divergence(step, before).mean())
        losses[node] = float(loss.detach())
        total = total + loss
    (total / len(edges)).backward()
    return losses, float(network.weight.grad)


def gradient(objective, examples, index, network=None, reference=None):
    """Of the mean over all terms, of the units at `index`; pruned and inactive ones count as zeros."""
    network = network or Network()
    loss, metrics = objective.loss(examples.take(index), network, reference)
    (loss.sum() / float(examples.terms.sum())).backward()
    return float(network.weight.grad), loss, metrics


@pytest.mark.parametrize("kl_form", ["velocity", "mean"])
@pytest.mark.parametrize("kl", [0.0, WEIGHT])
def test_siblings_share_a_forward_pass_and_nothing_changes(rollout, credit, kl, kl_form):
    objective = GRPO(transition, LOW, HIGH, kl, kl_form if kl else "velocity")
    examples = objective.examples(rollout, credit, KEPT, unasked, 4)
    assert len(examples.prompt) == 2 * (1 + 3 + 3) and len(examples.edges) == 2 * (3 + 3 + 6)
    network = Network()
    index = torch.arange(len(examples.prompt))
    found, loss, metrics = gradient(objective, examples, index, network, Network(0.5) if kl else None)
    assert network.rows == 14 and len(loss) == 24
    losses, expected = naive(rollout, credit, KEPT, kl_form, kl)
    assert found == pytest.approx(expected, rel=1e-4)
    assert loss.tolist() == pytest.approx([losses[n] for n in examples.edges.node.tolist()], rel=1e-4, abs=1e-6)
    assert metrics.keys() == set(objective.metrics) and 0 < metrics["clipped"].sum() < 24
    assert all(value.shape == (24,) and not value.requires_grad for value in metrics.values())


def test_a_shuffle_takes_origins_with_all_their_edges(rollout, credit):
    objective = GRPO(transition, LOW, HIGH)
    examples = objective.examples(rollout, credit, KEPT, unasked, 4)
    index = torch.tensor([9, 0, 5, 13])
    taken = examples.take(index)
    assert taken.terms.tolist() == [2, 3, 1, 2] == torch.bincount(taken.edges.origin).tolist()
    parents = FOREST.parent[taken.edges.node]
    assert all(torch.equal(x, y) for x, y in zip(taken.edges.latents, rollout.edges.latents[index], strict=True))
    assert len(parents.unique()) == 4 and torch.equal(taken.term_prompt, FOREST.prompt[taken.edges.node])
    torch.testing.assert_close(taken.advantage, credit.advantage[taken.edges.node])


def test_origins_without_credit_are_left_out_and_the_gradient_stays(rollout, credit):
    objective = GRPO(transition, LOW, HIGH)
    examples = objective.examples(rollout, credit, KEPT, unasked, 4)
    assert int((~examples.active).sum()) == 3  # the last level of the second prompt; one child alone idles nobody
    assert int(examples.terms.sum()) == 24
    whole, _, _ = gradient(objective, examples, torch.arange(14))
    network = Network()
    found, _, _ = gradient(objective, examples, torch.nonzero(examples.active).flatten(), network)
    assert network.rows == 11 and found == pytest.approx(whole, rel=1e-6)
    assert found == pytest.approx(naive(rollout, credit, KEPT)[1], rel=1e-4)


def test_the_reference_pulls_where_there_is_no_credit(rollout, credit):
    objective = GRPO(transition, LOW, HIGH, kl=WEIGHT)
    examples = objective.examples(rollout, replace(credit, advantage=torch.zeros(len(KEPT))), KEPT, unasked, 4)
    assert objective.needs_reference and examples.active.all()
    found, _, _ = gradient(objective, examples, torch.arange(14), reference=Network(0.5))
    assert found < 0  # towards 0.5


def test_pruned_edges_give_nothing_and_the_mean_is_still_over_all(rollout, credit):
    objective, kept = GRPO(transition, LOW, HIGH), KEPT.clone()
    ends = torch.nonzero(FOREST.step == 3).flatten()
    kept[ends[::2]] = False  # one sibling of each pair
    kept[torch.nonzero(FOREST.step == 0).flatten()[3:]] = False  # the whole first step of the second prompt
    examples = objective.examples(rollout, credit, kept, unasked, 4)
    assert len(examples.edges) == 24 - 6 - 3 and int(examples.terms.sum()) == 24
    assert int((~examples.active).sum()) == 3 + 1
    found, loss, _ = gradient(objective, examples, torch.nonzero(examples.active).flatten())
    losses, expected = naive(rollout, credit, kept)
    assert found == pytest.approx(expected, rel=1e-4) and len(loss) < len(losses)


def test_micro_batches_change_nothing(rollout, credit):
    objective = GRPO(transition, LOW, HIGH)
    examples = objective.examples(rollout, credit, KEPT, unasked, 4)
    network = Network()
    for index in torch.randperm(14, generator=torch.Generator().manual_seed(3)).split(3):
        gradient(objective, examples, index, network)
    whole, _, _ = gradient(objective, examples, torch.arange(14))
    assert float(network.weight.grad) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("micro_batch", [1, 5, 128])
def test_the_gates_errors_are_those_of_each_edge(rollout, micro_batch):
    edges = rollout.edges
    found = GRPO(transition, 0.1, 0.1).on_policy_errors(rollout, Network(), micro_batch)
    densities = [normal(edges, e, Network()).log_prob(edges.next_latents[e]).mean() for e in range(len(edges))]
    errors = (torch.stack(densities).detach() - edges.old_log_prob).exp().sub(1).abs()
    expected = [(s, max(errors[e] for e in range(len(edges)) if edges.edge_step[e] == s)) for s in (0, 2, 3)]
    assert [step for step, _ in found] == [0, 2, 3]
    assert [error for _, error in found] == pytest.approx([float(e) for _, e in expected], rel=1e-3)


def test_a_nan_in_any_micro_batch_stays_in_its_step(rollout):
    edges = rollout.edges
    bad = int(torch.nonzero(edges.edge_step == 2)[0])
    rollout = replace(
        rollout, edges=replace(edges, old_log_prob=edges.old_log_prob.index_fill(0, torch.tensor(bad), torch.nan))
    )
    found = dict(GRPO(transition, 0.1, 0.1).on_policy_errors(rollout, Network(), 1))
    assert found[2] != found[2] and found[0] == found[0] and found[3] == found[3]


def test_no_edges_at_all_is_no_error(rollout):
    edges = rollout.edges
    none = Edges(*(column[:0] for column in vars(edges).values()))
    assert list(GRPO(transition, 0.1, 0.1).on_policy_errors(replace(rollout, edges=none), Network(), 4)) == []
