"""Two prompts with three finished samples each, and a policy of one weight, for objectives that train on samples."""

import torch

from diffrl.records import Credit, Prompt, PromptBatch, Rollout
from diffrl.rollout.denoise import Level
from diffrl.rollout.observers import EdgeRecorder
from diffrl.rollout.tree import plan_forest

SHAPE = (2, 3, 5)


def rollout_of(groups, latents, iteration=4):
    forest = plan_forest(len(groups), 3, {})
    batch = PromptBatch([Prompt(f"prompt {g}") for g in groups], groups, iteration)
    none, zero = EdgeRecorder(forest), torch.zeros(())
    none(Level(5, zero, zero, forest.leaf, forest.sample_prompt, latents, None, True))
    return Rollout(batch, forest, torch.linspace(1, 0, 6), latents, torch.zeros(1), none.edges())


class Policy:
    """One weight; what it was asked, and with it how often."""

    def __init__(self, weight):
        self.weight, self.asked = torch.tensor(weight, requires_grad=True), []

    def __call__(self, latents, sigma, prompt):
        self.asked.append(latents)
        return self.weight * latents.tanh() * (1 + sigma + 0.1 * prompt).reshape(-1, 1, 1, 1)


def examples_of(objective, rollout, outcome, used=True, old=None, micro_batch=4):
    """What an objective trains on; `used` of each sample, or of all."""
    none = torch.zeros(len(rollout.forest.parent))
    used = used if torch.is_tensor(used) else torch.full((len(outcome),), used)
    credit = Credit(none, outcome, used, none, none, none.bool(), 0, 0)
    with torch.no_grad():
        return objective.examples(rollout, credit, none == 0, old or Policy(0.4), micro_batch)
