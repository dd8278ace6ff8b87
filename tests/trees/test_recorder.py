"""Forests in the training loop: they resume, their gradient is the naive one, their values can be checked by hand."""

import copy
import json

import pytest
import torch

import diffrl.training.update as update
from diffrl.config.load import make_config
from diffrl.cost.plan import make_plan
from diffrl.rollout.complete import inner_nodes
from diffrl.rollout.denoise import velocity_of
from diffrl.rollout.noise import noise_at
from diffrl.rollout.tree import root_addresses
from diffrl.tracking.metrics import read_metrics
from tests.tiers import daily
from tests.training.harness import (
    EXPLORE,
    FOREST,
    FUSED,
    TREES,
    distance,
    flat,
    make_trainer,
    settings,
    start,
)
from tests.training.test_gradient import naive_step, naive_velocity

LORA = {"rank": 3, "alpha": 5, "targets": ["to_q", "to_out.0"]}


def forest_run(pipeline, directory, rollout=FOREST, credit=FUSED, **changes):
    data = settings(pipeline, directory, credit=credit, **({"track": TREES} | changes))
    data["rollout"] |= rollout
    return data


def everything(pipeline, directory):
    """All that has a state: an old policy, a moving average, a fidelity watch that has widened and is counting."""
    fidelity = {"action": "widen", "patience": 2}
    data = forest_run(
        pipeline,
        directory,
        rollout=FOREST | {"explore": EXPLORE | {"fidelity": fidelity}},
        model={"family": "sd3", "path": str(pipeline), "lora": LORA},
        train={"learning_rate": 1e-2, "ema": {"decay": 0.7}, "updates_per_iteration": 2},
    )
    data["objective"] = {"kind": "nft", "old_decay_rate": 0.1, "old_decay_max": 0.5}
    data["credit"] = {}
    data["run"] |= {"iterations": 4, "checkpoint_every": 3}
    return data


@pytest.mark.long
def test_what_trees_to_look_at_cost_is_planned_and_counted_apart(random_sd3, tmp_path):
    """Every node that a step starts from is asked before and after the update; of the first prompt only."""
    for name, trees in (("with", {"every": 2, "prompts": 1}), ("without", None)):
        data = forest_run(random_sd3, tmp_path / name, track={"trees": trees})
        data["run"] |= {"iterations": 4}  # the first, the third and the last keep trees
        start(data)
    planned = make_plan(make_config(data | {"track": {"trees": {"every": 2, "prompts": 1}}}))
    shown, plain = (json.loads((tmp_path / name / "run/summary.json").read_text()) for name in ("with", "without"))
    assert shown["counts"].pop("evaluations/trees") == planned.tree_evaluations == 3 * 6 * 2
    assert shown["counts"] == plain["counts"] and shown["network_evaluations"] == plain["network_evaluations"]
    rows = read_metrics(tmp_path / "with/run/metrics.jsonl")
    assert [one.get("evaluations/trees", 0) for one in rows[1:]] == [12, 0, 12, 12]


@pytest.mark.parametrize("lora", daily([None, LORA], [LORA]), ids=["full", "lora"])
def test_a_forests_gradient_is_that_of_one_forward_an_edge(random_sd3, tmp_path, monkeypatch, lora):
    """The second iteration's: the ratio has left 1. Advantages of fused values, typed again."""
    clip = 2e-4
    data = forest_run(
        random_sd3,
        tmp_path,
        model={"family": "sd3", "path": str(random_sd3), "lora": lora},
        objective={"kind": "grpo", "clip": clip},
        train={"learning_rate": 3e-2 if lora else 3e-4, "micro_batch": 5, "max_grad_norm": None},
    )
    data["prompts"]["per_iteration"] = 1
    trainer = make_trainer(data)
    network, seen, accumulate = trainer.session.policy.inner, [], update.accumulate_gradient

    def recorded(*, policy, shares, **rest):
        now, ((_, examples, index),) = copy.deepcopy(network), shares
        found = accumulate(policy=policy, shares=shares, **rest)
        seen.append((now, examples.take(index).edges, {n: p.grad.clone() for n, p in policy.parameters.items()}, found))
        return found

    monkeypatch.setattr(update, "accumulate_gradient", recorded)
    done = trainer.iterate()
    done = trainer.iterate()
    rollout, old = done.samples.rollout, seen[-2][0]
    forest, prompt = rollout.forest, rollout.batch.prompts[0].text
    advantage = naive_fused_advantages(forest, done.samples.table.total)
    top, total, count = float(trainer.session.sigmas[1]), [], 0
    now, edges, gradient, found = seen[-1]
    now.zero_grad()
    for e in range(len(edges)):
        o, count = int(edges.origin[e]), count + 1
        s, n = float(edges.sigma[o]), float(edges.sigma_next[o])
        v = naive_velocity(trainer.session.adapter, now, edges.latents[o], s, prompt, 1.0)
        with torch.no_grad():
            v_old = naive_velocity(trainer.session.adapter, old, edges.latents[o], s, prompt, 1.0)
        densities = [
            naive_step(edges.latents[o], u, s, n, top, 0.7).log_prob(edges.next_latents[e]) for u in (v, v_old)
        ]
        ratio, a = (densities[0].mean() - densities[1].mean()).exp(), advantage[int(edges.node[e])]
        total.append(torch.max(-a * ratio, -a * ratio.clamp(1 - clip, 1 + clip)))
    torch.stack(total).mean().backward()
    expected = flat({name: p.grad for name, p in now.named_parameters() if p.requires_grad})
    assert distance(flat(gradient), expected) < 1e-3
    assert found.norm == pytest.approx(float(expected.norm()), rel=1e-3)
    assert found.evaluated == 3 and count in (5, 6, 7)  # half of 6 origins with two edges each


def naive_fused_advantages(forest, total):
    """Mean of the leaves below, z-scored among the nodes of one step."""
    below = {node: [] for node in range(len(forest.parent))}
    for sample, leaf in enumerate(forest.leaf.tolist()):
        node = leaf
        while node >= 0:
            below[node].append(float(total[sample]))
            node = int(forest.parent[node])
    values = torch.tensor([sum(x) / len(x) for x in below.values()], dtype=torch.float64)
    advantage = torch.zeros_like(values)
    for step in forest.step.unique().tolist():
        at = forest.step == step
        if step >= 0:
            advantage[at] = (values[at] - values[at].mean()) / (values[at].std(correction=0) + 1e-4)
    return advantage


@pytest.mark.parametrize("value", ["ode", "predicted_x0"])
@pytest.mark.parametrize("tree", [{"roots": 3}, {"roots": 1, "splits": [1]}], ids=["chains", "tree"])
def test_the_value_of_a_node_is_the_reward_of_its_picture(random_sd3, tmp_path, value, tree):
    """Each node's latents are carried on by Euler, or its predicted picture taken, one network call at a time."""
    rollout = {"stochastic": {"kind": "window", "start": 1, "size": 2}, "tree": tree, "steps": 4}
    data = forest_run(random_sd3, tmp_path, rollout=rollout, credit={"reward": "incremental", "value": value})
    data["prompts"]["per_iteration"] = 1
    trainer = make_trainer(data)
    session = trainer.session
    before = copy.deepcopy(session.policy.inner)
    done = trainer.iterate()
    drawn, values = done.samples.rollout, done.credit.values
    forest, edges, sigmas = drawn.forest, drawn.edges, session.sigmas.tolist()
    session.adapter.transformer = before
    predict = velocity_of(session.adapter, trainer.encode(drawn.batch.prompts), 1.0)
    roots = noise_at(root_addresses(forest, drawn.batch, data["run"]["seed"]), tuple(drawn.latents.shape[1:]))
    arrived = {int(node): latents for node, latents in zip(edges.node, edges.next_latents, strict=True)}

    def onwards(x, start):
        for s, n in zip(sigmas[start:], sigmas[start + 1 :], strict=False):
            with torch.no_grad():
                v = predict(x[None], torch.tensor([s]), torch.tensor([0]))[0]
            if value == "predicted_x0":
                return x - s * v
            x = x - (s - n) * v
        return x

    for node in inner_nodes(forest).tolist():
        x = (
            arrived[node]
            if node in arrived
            else session.adapter.init_latents(lambda shape, n=node: roots[n : n + 1])[0]
        )
        picture = session.adapter.decode(onwards(x, int(forest.step[node]) + 1)[None])[0]
        expected = float(picture[0].float().mean() / 255)
        assert float(values[node]) == pytest.approx(expected, abs=2e-3), node
    torch.testing.assert_close(values[forest.leaf], done.samples.table.total)
