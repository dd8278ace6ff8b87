"""How long a rank may let the others wait, by the settings: the one timeout of everything that ranks exchange."""

from __future__ import annotations

from collections.abc import Sequence

from diffrl.config.rewards import RewardSettings
from diffrl.config.schema import Config
from diffrl.cost.plan import prompt_cost

SAVING = 7200.0
"""Seconds for what is no reward: 192 GB of a sharded checkpoint at 27 MB/s, a pipeline that one rank downloads, a
report."""
SLACK = 600.0
"""Seconds for what ranks do beside it."""
FEWEST = 4
"""Samples a call of a reward that is given no batch_size: the fewest that a registered one takes by itself."""
LONGEST = 1.0e6
"""Seconds where a reward may take as long as it takes: the most that rewards.timeout can be."""


def longest_wait(config: Config, world_size: int) -> float:
    """Return the seconds that ranks wait for one that does not come; a reward that is overdue is noticed before.

    Each of a rank's calls of a reward may take `rewards.timeout`, and they may queue one behind the other.
    """
    r = config.rollout
    generated = max(0 if r.explore is None else r.explore.candidates, r.redrawn)
    valued = max(prompt_cost(config, window_start).inner for window_start in r.window_places)
    trained = _scoring(config.rewards, max(generated, valued) * -(-config.prompts.per_iteration // world_size))
    # Where a reward is of groups, the prompts are shared out, and the first rank's may be one more than an even part.
    evaluated = _scoring(config.eval.rewards, min(config.eval.samples, 2 * -(-config.eval.samples // world_size)))
    sampled = 0.0 if r.explorers is None else r.explorers.deadline
    return min(max(trained, evaluated, sampled, SAVING) + SLACK, LONGEST)


def _scoring(rewards: Sequence[RewardSettings], samples: int) -> float:
    """Return seconds that a table of so many samples may take."""
    calls = [(reward, -(-samples // (reward.batch_size or FEWEST))) for reward in rewards]
    return sum(LONGEST if reward.timeout is None else reward.timeout * count for reward, count in calls)
