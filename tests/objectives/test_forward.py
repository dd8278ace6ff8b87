"""AWM, DGPO and CRD: what they train on, and losses and gradients of whole prompts typed from the papers."""

import math
from dataclasses import replace

import pytest
import torch

from diffrl.objectives.awm import AWM
from diffrl.objectives.crd import CRD
from diffrl.objectives.dgpo import DGPO
from diffrl.objectives.nft import NFT
from diffrl.objectives.noised import noised
from tests.objectives import samples
from tests.objectives.samples import SHAPE, Policy, rollout_of

OUTCOME = torch.tensor([1.3, -0.7, 0.0, 2.0, -1.5, 0.4])
USED = torch.tensor([True, True, True, True, True, False])


@pytest.fixture
def rollout():
    return rollout_of([5, 7], torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(3)))


def examples_of(objective, rollout, old=None):
    return samples.examples_of(objective, rollout, OUTCOME, USED, old)


def compared(objective, examples, policy, reference=None):
    with torch.no_grad():
        every = torch.arange(len(examples.sigma))
        return objective.precompute_group_terms(examples, every, policy, reference, 4)


@pytest.mark.parametrize(("levels", "noise_range"), [(4, 0.6), (1, 0.9), (3, 1.0)])
def test_levels_lie_in_the_noisiest_part_and_are_spread_over_it(rollout, levels, noise_range):
    found = noised(rollout, 11, levels, noise_range)
    places = (found.sigma.reshape(2, 3 * levels) - (1 - noise_range)) / noise_range * 3 * levels
    assert torch.equal(places.floor().sort(1).values, torch.arange(3.0 * levels).expand(2, -1))
    sigma = found.sigma.reshape(-1, 1, 1, 1)
    torch.testing.assert_close(found.latents, found.clean + sigma * found.target)


def test_shared_levels_are_the_same_for_a_prompts_samples_and_so_is_their_noise(rollout):
    found = noised(rollout, 11, 4, 0.6, shared=True)
    sigma, noise = found.sigma.reshape(2, 3, 4), found.noise.reshape(2, 3, 4, *SHAPE)
    assert torch.equal(sigma, sigma[:, :1].expand(2, 3, 4)) and torch.equal(noise, noise[:, :1].expand_as(noise))
    places = ((sigma[:, 0] - 0.4) / 0.6 * 4).floor().sort(1).values
    assert torch.equal(places, torch.arange(4.0).expand(2, 4))
    assert len({tuple(x.flatten().tolist()) for x in noise[:, 0].reshape(8, -1)}) == 8
    cells = found.cell.reshape(2, 3, 4)
    assert torch.equal(cells, cells[:, :1].expand(2, 3, 4)) and len(set(cells.flatten().tolist())) == 8
    alone = noised(rollout_of([7], rollout.latents[3:]), 11, 4, 0.6, shared=True)
    assert torch.equal(alone.latents, found.latents[12:])


@pytest.mark.parametrize("objective", [NFT, AWM, CRD])
def test_objectives_of_one_seed_see_the_same_noise(rollout, objective):
    expected = noised(rollout, 11, 2, 0.7)
    found = examples_of(objective(11, levels=2, noise_range=0.7), rollout)
    assert torch.equal(found.latents, expected.latents) and torch.equal(found.sigma, expected.sigma)


def test_dgpos_groups_share_levels_and_noise(rollout):
    expected = noised(rollout, 11, 2, 0.7, shared=True)
    found = examples_of(DGPO(11, levels=2, noise_range=0.7), rollout)
    assert torch.equal(found.latents, expected.latents) and torch.equal(found.cell, expected.cell)


@pytest.mark.parametrize(("objective", "trained"), [
    (AWM(1), [1, 1, 0, 1, 1, 0]), (AWM(1, kl=0.1), [1, 1, 1, 1, 1, 0]),
    (DGPO(1), [1, 1, 0, 1, 1, 0]), (DGPO(1, kl=0.1), [1, 1, 1, 1, 1, 0]), (CRD(1), [1, 1, 1, 1, 1, 0]),
])  # fmt: skip
def test_the_networks_are_asked_where_there_is_something_to_learn(rollout, objective, trained):
    objective, old = replace(objective, levels=2), Policy(0.4)
    examples = examples_of(objective, rollout, old)
    active = torch.tensor(trained, dtype=torch.bool).repeat_interleave(2)
    assert torch.equal(examples.active, active) and (examples.terms == 1).all()
    assert torch.equal(torch.cat(old.asked), examples.latents[active])
    own, silent = replace(objective, old_is_policy=True), Policy(0.4)
    assert (
        objective.needs_old_velocity
        and not own.needs_old_velocity
        and not examples_of(own, rollout, silent).old_velocity.any()
    )
    assert silent.asked == [] and list(objective.on_policy_errors(rollout, old, 4)) == []
    policy, reference = Policy(0.5), Policy(0.1)
    compared(objective, examples, policy, reference)
    calls = [sum(map(len, network.asked)) for network in (policy, reference)]
    each = [objective.group_evaluations, objective.precomputes_reference]
    assert calls == [n * int(active.sum()) for n in each] and any(each) == (not isinstance(objective, AWM))


def pieces(examples, policy, old, reference):
    """Of each active unit: v, v_old, v_ref and target, one at a time in float64; None for the others."""
    found = []
    for i in range(len(examples.sigma)):
        at = tuple(column[i : i + 1] for column in examples.start)
        velocities = (policy(*at), old(*at).detach(), reference(*at).detach(), examples.target[i : i + 1])
        found.append([v[0].double() for v in velocities] if examples.active[i] else None)
    return found


def error(v, target):
    return (v - target).square().mean()


def check(objective, rollout, expected):
    """Loss and gradient over all units against `expected`, which maps the pieces to a list of losses."""
    policy, old, reference, naive = Policy(0.5), Policy(0.4), Policy(0.1), Policy(0.5)
    examples = examples_of(objective, rollout, old)
    examples = compared(objective, examples, policy, reference)
    active = torch.nonzero(examples.active).flatten()
    taken = examples.take(active)
    asks = objective.needs_reference and not objective.precomputes_reference
    loss, metrics = objective.loss(taken, policy, reference if asks else None)
    loss.sum().backward()
    losses = expected(examples, pieces(examples, naive, old, reference))
    sum(losses).backward()
    assert loss.tolist() == pytest.approx([float(one.detach()) for one in losses], rel=1e-4, abs=1e-6)
    assert float(policy.weight.grad) == pytest.approx(float(naive.weight.grad), rel=1e-4)
    assert metrics.keys() == set(objective.metrics) and abs(float(naive.weight.grad)) > 1e-3


@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_awm_is_the_papers(rollout, kl):
    def expected(examples, units):
        found = []
        for i, unit in enumerate(units):
            if unit is None:
                continue
            v, v_old, v_ref, target = unit
            sigma, a = float(examples.sigma[i]), float(OUTCOME[i // 2])
            log_probs = [-((error(u, target) + 1e-10) ** 0.25 - 1e-10**0.25) * sigma / 0.25 for u in (v, v_old)]
            ratio = (log_probs[0] - log_probs[1]).exp()
            worst = torch.max(-a * ratio, -a * ratio.clamp(0.0, 2.0))
            found.append(worst + kl * error(v, v_ref))
        return found

    check(AWM(1, kl=kl, levels=2, noise_range=0.9), rollout, expected)


@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_dgpo_is_the_papers(rollout, kl):
    """Whole groups: those that could be scored, at one noise level; without advantage they count in G."""

    def expected(examples, units):
        weights = {}
        for prompt in range(2):
            members = [s for s in range(3 * prompt, 3 * prompt + 3) if USED[s]]
            for level in range(2):
                own = [(float(OUTCOME[s]), units[2 * s + level]) for s in members]
                total = sum(
                    (a * 3.0 * (error(u[0], u[3]) - error(u[2], u[3])).item() for a, u in own if u is not None), 0.0
                )
                weights[prompt, level] = 1 / (1 + math.exp(-total / len(members)))
        found = []
        for i, unit in enumerate(units):
            if unit is not None:
                v, _, v_ref, target = unit
                sample = i // 2
                own = weights[sample // 3, i % 2] * float(OUTCOME[sample]) * error(v, target)
                found.append(own + kl * error(v, v_ref))
        assert len(set(weights.values())) == 4
        return found

    check(DGPO(1, beta=3.0, clip=5.0, kl=kl, levels=2, noise_range=0.6), rollout, expected)


@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_crd_is_the_papers(rollout, kl):
    """The mean of the implied rewards is with gradient here: it makes no difference to a group's sum."""

    def implied(unit):
        v, v_old, _, target = unit
        weights = [(u.detach() - target).abs().mean() for u in (v, v_old)]
        return error(v_old, target) / weights[1] - error(v, target) / weights[0]

    def expected(examples, units):
        found = {}
        for prompt in range(2):
            members = [s for s in range(3 * prompt, 3 * prompt + 3) if USED[s]]
            for level in range(2):
                places = [2 * s + level for s in members]
                q = [implied(units[i]) for i in places]
                r = [max(min(float(OUTCOME[s]), 5), -5) / 10 + 0.5 for s in members]
                for i, own, reward in zip(places, q, r, strict=True):
                    gap = 0.7 * (own - sum(q) / len(q)) - (reward - sum(r) / len(r))
                    found[i] = 5 * gap**2 / 0.7 + kl * error(units[i][0], units[i][2])
        return [found[i] for i in sorted(found)]

    check(CRD(1, beta=0.7, kl=kl, levels=2, noise_range=0.99), rollout, expected)


@pytest.mark.parametrize("objective", [DGPO(1, levels=2), CRD(1, levels=2)])
def test_only_the_updates_units_are_compared(rollout, objective):
    examples = examples_of(objective, rollout)
    index = torch.nonzero(examples.cell == examples.cell[1]).flatten()
    with torch.no_grad():
        part = objective.precompute_group_terms(examples, index, Policy(0.5), Policy(0.1), 4)
    whole = compared(objective, examples, Policy(0.5), Policy(0.1))
    rest = torch.ones(len(examples.sigma), dtype=torch.bool).index_fill(0, index, False)
    for name, column in vars(part).items():
        assert torch.equal(column[index], getattr(whole, name)[index]), name
        assert torch.equal(column[rest], getattr(examples, name)[rest]), name
