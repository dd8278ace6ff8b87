"""The update's gradient against a naive one: one forward pass an edge, every formula typed from the papers."""

import copy
import math

import pytest
import torch
from torch.distributions import Normal

import diffrl.training.update as update
from diffrl.models.loading import load_adapter
from tests.training.harness import distance, flat, make_trainer, record_gradients, settings

LORA = {"rank": 3, "alpha": 5, "targets": ["to_q", "to_out.0"]}


def naive_velocity(adapter, network, x, sigma, prompt, guidance_scale):
    found = adapter.encode_prompts([prompt])

    def call(embeds, pooled):
        timestep = torch.tensor([float(sigma) * 1000])
        return network(
            hidden_states=x[None], timestep=timestep, encoder_hidden_states=embeds, pooled_projections=pooled
        ).sample[0]

    conditional = call(found["prompt_embeds"], found["pooled"])
    if guidance_scale == 1:
        return conditional
    unconditional = call(found["negative_prompt_embeds"], found["negative_pooled"])
    return unconditional + guidance_scale * (conditional - unconditional)


def naive_step(x, v, s, n, top, level):
    """Flow-GRPO's step, typed from the paper: drift v + g^2 / (2 s) * (x + (1 - s) v), noise g sqrt(s - n)."""
    g = level * math.sqrt(s / (1 - (top if s == 1 else s)))
    return Normal(x - (v + g**2 / (2 * s) * (x + (1 - s) * v)) * (s - n), g * math.sqrt(s - n))


def naive_advantages(rewards, group_size):
    groups = rewards.double().reshape(-1, group_size)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, correction=0, keepdim=True) + 1e-4)).flatten()


@pytest.mark.parametrize(
    ("lora", "guidance_scale", "kl_form"), [(None, 1.0, "velocity"), (LORA, 2.5, "mean")], ids=["full", "lora"]
)
def test_the_whole_updates_gradient_equals_a_naive_one(
    random_sd3, tmp_path, monkeypatch, lora, guidance_scale, kl_form
):
    """Both updates of the second iteration: the ratio has left 1 and the policy its reference."""
    clip, kl = 2e-4, 3.0
    data = settings(
        random_sd3,
        tmp_path,
        model={"family": "sd3", "path": str(random_sd3), "lora": lora},
        objective={"clip": clip, "kl": kl, "kl_form": kl_form},
        train={"learning_rate": 3e-2 if lora else 3e-4, "micro_batch": 3, "max_grad_norm": None},
    )
    data["rollout"] |= {"guidance_scale": guidance_scale, "stochastic": {"kind": "window", "start": 0, "size": 3}}
    trainer = make_trainer(data)
    session, network = trainer.session, trainer.session.policy.inner
    seen, accumulate = [], update.accumulate_gradient

    def recorded(*, policy, shares, **rest):
        now = copy.deepcopy(network)
        found = accumulate(policy=policy, shares=shares, **rest)
        ((_, examples, index),) = shares
        seen.append(
            (now, examples.take(index).edges, {name: p.grad.clone() for name, p in policy.parameters.items()}, found)
        )
        return found

    monkeypatch.setattr(update, "accumulate_gradient", recorded)
    for _ in range(2):
        done = trainer.iterate()
    rollout, old = done.samples.rollout, seen[2][0]  # nothing was updated between the rollout and its first update
    advantages = naive_advantages(done.samples.table.total, 3)
    base = load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))
    top = float(session.sigmas[1])
    clipped = 0
    for now, edges, gradient, found in seen[2:]:
        now.zero_grad()
        losses = []
        for i in range(len(edges)):
            origin, node = int(edges.origin[i]), int(edges.node[i])
            x, following = edges.latents[origin], edges.next_latents[i]
            s, n = float(edges.sigma[origin]), float(edges.sigma_next[origin])
            sample = int(3 * rollout.forest.prompt[node] + rollout.forest.root[node])
            prompt = rollout.batch.prompts[sample // 3].text
            v = naive_velocity(base, now, x, s, prompt, guidance_scale)
            with torch.no_grad():
                v_old = naive_velocity(base, old, x, s, prompt, guidance_scale)
                v_ref = naive_velocity(base, base.transformer, x, s, prompt, guidance_scale)
            step, before, reference = (naive_step(x, u, s, n, top, 0.7) for u in (v, v_old, v_ref))
            ratio = (step.log_prob(following).mean() - before.log_prob(following).mean()).exp()
            a = advantages[sample]
            loss = torch.max(-a * ratio, -a * ratio.clamp(1 - clip, 1 + clip))
            clipped += int((a > 0 and ratio > 1 + clip) or (a < 0 and ratio < 1 - clip))
            if kl_form == "velocity":
                loss = loss + kl * (v - v_ref).pow(2).mean()
            else:
                loss = loss + kl * torch.distributions.kl_divergence(step, reference).mean()
            losses.append(float(loss.detach()))
            (loss / len(edges)).backward()
        expected = flat({name: p.grad for name, p in now.named_parameters() if p.requires_grad})
        assert distance(flat(gradient), expected) < 1e-3
        assert found.loss == pytest.approx(sum(losses) / len(edges), rel=1e-3, abs=1e-6)
        assert found.norm == pytest.approx(float(expected.norm()), rel=1e-3)
    assert clipped > 0  # the clip was felt


def test_gradients_are_cut_to_the_norm_and_keep_their_direction(random_sd3, tmp_path):
    found = {}
    for limit in (None, 0.02, 100.0):
        data = settings(random_sd3, tmp_path / str(limit), train={"updates_per_iteration": 1, "max_grad_norm": limit})
        trainer, gradients = make_trainer(data), []
        record_gradients(trainer, gradients)
        found[limit] = (gradients, trainer.iterate().metrics["update/grad_norm"])
    (free,), norm = found[None]
    (cut,), before_cutting = found[0.02]
    assert float(free.norm()) == pytest.approx(norm, rel=1e-5) == before_cutting and norm > 0.04
    assert float(cut.norm()) == pytest.approx(0.02, rel=1e-3)
    assert distance(cut / cut.norm(), free / free.norm()) < 1e-5
    assert torch.equal(found[100.0][0][0], free)
