"""Keys that can change nothing are said, and only where they were given and cannot."""

import pytest
import torch

from diffrl.config import load_config
from diffrl.config.idle import unused_keys
from diffrl.config.load import make_config
from diffrl.cost.plan import make_plan
from diffrl.functional.losses import nft_loss
from diffrl.functional.matching import crd_loss, implicit_reward
from tests.config.test_config_rules import data_of

CLIPS = "every ratio is 1, but for rounding."
NFT = {"kind": "nft", "old_decay_max": 0.0}


@pytest.mark.parametrize(
    ("objective", "updates", "keys"),
    [
        ({"kind": "grpo", "clip": 1e-3}, 1, ["objective.clip"]),
        ({"kind": "grpo", "clip": 1e-3, "clip_high": 2e-3}, 1, ["objective.clip, objective.clip_high"]),
        ({"kind": "grpo", "clip": 1e-3}, 2, []),
        ({"kind": "grpo", "kl": 0.1}, 1, []),
        (NFT | {"beta": 0.5}, 1, ["objective.beta"]),
        (NFT | {"beta": 0.5}, 2, []),
        ({"kind": "nft", "beta": 0.5, "old_decay_rate": 0.1}, 1, []),
        (NFT | {"old_decay_rate": 0.1}, 2, ["objective.old_decay_rate"]),
        (NFT | {"beta": 1.0, "edges": {"clip": 1e-3}}, 1, ["objective.edges.clip", "objective.beta"]),
        (NFT | {"edges": {"weight": 6.0}}, 1, []),
        ({"kind": "awm", "clip": 0.5}, 1, ["objective.clip"]),
        ({"kind": "awm", "clip": 0.5, "old_decay_max": 0.3}, 1, []),
        ({"kind": "dgpo", "clip": 0.5, "beta": 3.0, "old_decay_max": 0.0}, 1, ["objective.clip"]),
        ({"kind": "crd", "beta": 3.0, "old_decay_max": 0.0}, 1, ["objective.beta"]),
    ],
)
def test_what_was_given_and_cannot_act_is_said(objective, updates, keys):
    credit = {} if objective["kind"] != "grpo" and "edges" not in objective else {"reward": "fused"}
    config = make_config(data_of(objective=objective, credit=credit, train={"updates_per_iteration": updates}))
    notes = unused_keys(config)
    assert [note.removeprefix("Without effect: ").partition(";")[0] for note in notes] == keys
    assert [note.endswith(CLIPS) for note in notes] == ["clip" in key for key in keys]


SPLIT = {"dynamics": {"kind": "flow_sde"}, "stochastic": {"kind": "splits"}, "tree": {"roots": 2, "splits": [0, 2]}}


@pytest.mark.parametrize(
    ("rollout", "credit", "acts"),
    [
        (SPLIT | {"steps": 4}, {}, False),  # noise, one without, noise, the last without
        (SPLIT | {"steps": 5}, {}, True),  # steps 3 and 4
        (SPLIT | {"steps": 4}, {"reward": "incremental", "value": "ode", "normalise": "depth"}, True),
        (SPLIT | {"steps": 6, "stochastic": {"kind": "all"}}, {}, False),
        (SPLIT | {"steps": 5, "stochastic": {"kind": "window", "start": 3, "size": 1}}, {}, False),
        (SPLIT | {"steps": 5, "stochastic": {"kind": "window", "start": 3, "size": 1, "slide_every": 2}}, {}, True),
    ],
)
def test_a_second_order_solver_needs_two_steps_without_noise(rollout, credit, acts):
    data = data_of(credit=credit, rollout=rollout | {"solver": "ab2"})
    said = [note for note in unused_keys(make_config(data)) if "rollout.solver" in note]
    assert said == ([] if acts else ["Without effect: rollout.solver; no two steps without noise follow each other."])
    data["rollout"]["solver"] = "ode"
    assert not any("rollout.solver" in note for note in unused_keys(make_config(data)))


GUIDED = {"guidance_scale": 4.0}
NEGATIVE = {"family": "sd3", "path": "somewhere", "negative_prompt": "blue"}
EXPLORES = {"precision": "nvfp4", "engine": "emulated", "candidates": 16, "keep": 16, "audit": 0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"rollout": GUIDED, "objective": {"kind": "grpo", "kl": 0.1, "kl_guidance": 2.0}},
            "kl pulls the guided policy",
        ),
        ({"rollout": GUIDED, "objective": {"kind": "grpo", "kl": 0.1, "kl_guidance": 4.0}}, None),
        ({"rollout": GUIDED, "objective": {"kind": "grpo", "kl": 0.1}}, None),
        ({"rollout": {"tree": {"roots": 1, "splits": [1], "correlation": 0.0}}}, "samples below a split are all equal"),
        ({"rollout": {"tree": {"roots": 1, "splits": [1], "correlation": 0.1}}}, None),
        ({"rollout": {"explore": EXPLORES}}, "keep and candidates are both 16"),
        ({"rollout": {"explore": EXPLORES | {"candidates": 20}}}, None),
        ({"model": NEGATIVE}, "model.negative_prompt; nothing is guided away from it"),
        ({"model": NEGATIVE, "rollout": GUIDED}, None),
        ({"model": NEGATIVE, "objective": {"kind": "nft", "guidance": 3.0}, "credit": {}}, None),
        ({"model": NEGATIVE, "objective": {"kind": "grpo", "kl": 0.1, "kl_guidance": 2.0}}, None),
    ],
)
def test_what_undoes_itself_is_said(changes, words):
    notes = unused_keys(make_config(data_of(**changes)))
    assert [words in note for note in notes] == ([True] if words else [])


def test_the_plan_says_it_too():
    path, clip = "configs/tiny-sd3/flow_grpo.yaml", "objective.clip=0.001"
    said = [
        note for note in make_plan(load_config(path, [clip, "train.updates_per_iteration=1"])).notes if CLIPS in note
    ]
    assert len(said) == 1 and not any(CLIPS in note for note in make_plan(load_config(path, [clip])).notes)


def test_beta_cancels_in_the_gradient_at_the_old_policy():
    """What the notes say of nft and crd: autograd, with three betas, at v = v_old and beside it."""
    generator = torch.Generator().manual_seed(0)
    x, x0, v_old = (torch.randn(5, 7, 3, generator=generator) for _ in range(3))
    r, sigma = torch.rand(5, generator=generator), torch.rand(5, generator=generator)

    def nft(v, beta):
        return nft_loss(v, v_old, x, x0, sigma, r, beta)[0]

    def crd(v, beta):
        q = implicit_reward(v, v_old, x - x0)
        return crd_loss(q, q.detach().mean().expand(5), r, r.mean().expand(5), beta)[0]

    for loss in (nft, crd):
        gradients = {}
        for moved in (0.0, 0.1):
            v = (v_old + moved).requires_grad_()
            gradients[moved] = [torch.autograd.grad(loss(v, beta).sum(), v)[0] for beta in (0.1, 1.0, 7.0)]
        here, there = gradients[0.0], gradients[0.1]
        assert all(torch.allclose(one, here[0], rtol=1e-3, atol=1e-5) for one in here) and bool(here[0].any())
        assert not torch.allclose(there[0], there[2], rtol=1e-2)
