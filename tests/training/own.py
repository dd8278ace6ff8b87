"""Components as a user writes them: what is right, and what breaks one rule each."""

from dataclasses import dataclass, replace

import torch

import diffrl
from diffrl.functional.dynamics import Step, dance_sde_step
from diffrl.functional.selection import Selection
from tests.training.scorers import Brightness


class Weighted(diffrl.SampleObjective):
    """Regression on the policy's own samples, weighted by exp(advantage / temperature)."""

    metrics = ("weight",)

    def __init__(self, temperature=1.0, levels=1):
        self.temperature, self.levels = temperature, levels

    def loss(self, examples, policy, reference):
        error = (policy(*examples.start) - examples.target).square().flatten(1).mean(1)
        weight = (examples.advantage / self.temperature).exp()
        return weight * error, {"weight": weight}


@dataclass(frozen=True)
class Leashed(diffrl.SampleObjective):
    """The same as a frozen dataclass, which asks the old policy and the reference."""

    kl: float = 0.5
    needs_reference = needs_old_velocity = True
    metrics = ("moved", "reference_kl")

    def loss(self, examples, policy, reference):
        velocity = policy(*examples.start)
        moved = (velocity - examples.old_velocity).square().flatten(1).mean(1)
        far = (velocity - reference(*examples.start)).square().flatten(1).mean(1)
        error = (velocity - examples.target).square().flatten(1).mean(1)
        return examples.advantage * error + self.kl * far, {"moved": moved, "reference_kl": far}


class Unclipped(diffrl.StepObjective):
    """The policy gradient without a clip."""

    metrics = ("ratio",)

    def loss(self, examples, policy, reference):
        density = self.log_prob(examples, policy(*examples.start))
        ratio = (density - examples.edges.old_log_prob).exp()
        return -ratio * examples.advantage, {"ratio": ratio}


def losing(name, change, metrics=("weight",)):
    """`Weighted`, of whose loss the answer is changed."""

    def loss(self, examples, policy, reference):
        return change(*Weighted.loss(self, examples, policy, reference))

    return type(name, (Weighted,), {"loss": loss, "metrics": metrics})


Reduced = losing("Reduced", lambda loss, metrics: (loss.mean(), metrics))
Alone = losing("Alone", lambda loss, metrics: loss)
Detached = losing("Detached", lambda loss, metrics: (loss.detach(), metrics))
Undeclared = losing("Undeclared", lambda loss, metrics: (loss, metrics), ())
Misshapen = losing("Misshapen", lambda loss, metrics: (loss, {"weight": metrics["weight"][:1].repeat(len(loss) + 1)}))
Counting = losing("Counting", lambda loss, metrics: (loss, {"weight": metrics["weight"].to("meta")}))
Imaginary = losing("Imaginary", lambda loss, metrics: (loss * 1j, metrics))
Listed = losing("Listed", lambda loss, metrics: (list(loss), metrics))
Unrelated = losing("Unrelated", lambda loss, metrics: (loss.detach().requires_grad_() * 2, metrics))
Rude = losing("Rude", lambda loss, metrics: {}["missing"])


class Fewer(Weighted):
    def examples(self, *args):
        found = super().examples(*args)
        return found.take(torch.arange(len(found.prompt) - 1))


class Elsewhere(Weighted):
    def examples(self, *args):
        found = super().examples(*args)
        return replace(found, prompt=found.prompt + 1)


class Nothing:
    trains = "everything"


class Endless(Weighted):
    levels = 0

    def __init__(self):
        self.temperature = 1.0


class Broken(Weighted):
    def __init__(self):
        raise RuntimeError("no weights here")


class Raising(Brightness):
    def __call__(self, batch):
        raise ValueError("out of paint")


class Empty(Weighted):
    def examples(self, *args):
        return None


class Overwriting(Weighted):
    def loss(self, examples, policy, reference):
        examples.advantage.zero_()
        return super().loss(examples, policy, reference)


class Rewriting(Weighted):
    def examples(self, rollout, *args):
        rollout.latents.mul_(2)
        return super().examples(rollout, *args)


class Unnamed(Weighted):
    metrics = None


class Spelt(Weighted):
    metrics = "weight"


class Loud(Weighted):
    noise_range = float("nan")


class Former(Weighted):
    asks_old = True


class Unmeasured(Unclipped):
    def on_policy_errors(self, rollout, policy, micro_batch):
        return None


def careless(scored):
    return {}["missing"]


def huge(scored):
    return torch.full((len(scored.value),), 1e300, dtype=torch.float64)


def away(scored):
    return scored.value.to("meta")


def uprooting(scored):
    scored.forest.parent.fill_(-1)
    return torch.ones(len(scored.value))


def hasty(rewards, keep):
    return {}["missing"]


def silent(rewards, keep):
    return Selection(torch.arange(keep), None)


def terse(rewards, keep):
    return Selection(torch.arange(keep), ("one",))


def drifting(x, v, sigma, sigma_next):
    return dance_sde_step(x.add_(1), v, sigma, sigma_next, 0.3)


def gains(scored):
    """What a step adds to the value of its node, one node at a time; in place, on what must be a copy."""
    given, parents, level = scored.value, scored.forest.parent.tolist(), scored.adds_nothing.tolist()
    worth = given.tolist()
    given.zero_()
    return torch.tensor(
        [torch.nan if up < 0 or level[n] else worth[n] - worth[up] for n, up in enumerate(parents)], dtype=torch.float32
    )


def gains_of_edges(scored):
    return gains(scored)[scored.forest.parent >= 0]


def counts(scored):
    return torch.ones(len(scored.value), dtype=torch.int64)


def boundless(scored):
    return scored.value / 0.0


def listed(scored):
    return scored.value.tolist()


def unsaid(scored):
    return None


def middle(rewards, keep):
    """The candidates whose rewards are nearest to the mean; what could not be scored comes last."""
    return (rewards - rewards.nanmean()).abs().nan_to_num(torch.inf).argsort()[:keep]


def best(rewards, keep):
    """The best, as a list and with reasons."""
    order = rewards.nan_to_num(-torch.inf).argsort(descending=True)[:keep]
    return Selection(order, tuple(f"best {rank}" for rank in range(1, keep + 1)))


def first_families(rewards, keep, *, parent, leaf):
    """The first, and the node of whose children each is, of how many."""
    return Selection(torch.arange(keep), tuple(f"{int(parent[leaf[i]])} of {len(parent)}" for i in range(keep)))


def in_place(rewards, keep):
    rewards.zero_()
    return list(range(keep))


def too_few(rewards, keep):
    return range(keep - 1)


def twice(rewards, keep):
    return [0] * keep


def beyond(rewards, keep):
    return torch.arange(keep) + len(rewards) - keep + 1


def fractions(rewards, keep):
    return rewards[:keep]


def nothing(rewards, keep):
    return None


def dance(x, v, sigma, sigma_next, strength=0.3):
    """DanceGRPO's step under another name."""
    return dance_sde_step(x, v, sigma, sigma_next, strength)


def raising(x, v, sigma, sigma_next):
    raise ValueError("no such level")


def still(x, v, sigma, sigma_next):
    return Step(x, torch.zeros(len(x), 1, 1, 1))


def cut_off(x, v, sigma, sigma_next):
    return dance_sde_step(x, v.detach(), sigma, sigma_next, 0.3)


def flat_std(x, v, sigma, sigma_next):
    return Step(x, sigma - sigma_next)


def blown_up(x, v, sigma, sigma_next):
    return Step(x / 0.0, torch.ones(1, 1, 1, 1))


def halved(x, v, sigma, sigma_next):
    return Step(x.half(), torch.ones(1, 1, 1, 1))


def mean_alone(x, v, sigma, sigma_next):
    return x
