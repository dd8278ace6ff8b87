"""A plan counts kinds of iterations: as every iteration added up by itself, and no slower for millions of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffrl.config.phases import Cycle, phases
from diffrl.cost.plan import make_plan, prompt_cost
from diffrl.errors import ConfigError
from tests.cost.test_plan import config_of

SCHEDULES = st.dictionaries(st.integers(0, 40), st.sampled_from([0.0, 0.5, 1.0]), max_size=6).map(
    lambda points: [list(point) for point in sorted(points.items())]
)
TREE = {"roots": 2, "splits": [1, 3], "branches": [2, 3]}
EXPLORE = {"precision": "training", "candidates": 24, "keep": 12, "steps": 10}


@given(
    schedule=SCHEDULES,
    iterations=st.integers(1, 50),
    size=st.integers(1, 5),
    slide=st.none() | st.integers(1, 9),
    explored=st.booleans(),
)
def test_a_plan_is_the_sum_of_its_iterations(schedule, iterations, size, slide, explored):
    config = config_of(
        run={"iterations": iterations},
        rollout={
            "steps": 12,
            "tree": TREE,
            "stochastic": {"kind": "window", "size": size, "slide_every": slide},
            "explore": EXPLORE if explored and size < 3 else None,
        },
        rewards=[{"name": "shapes", "schedule": schedule}, {"name": "shapes_strict"}],
        credit={"reward": "incremental", "value": "ode"},
    )
    plan, groups = make_plan(config), 6
    one_by_one = [prompt_cost(config, i) for i in range(iterations)]
    guided = {"explore": "explore", "rollout": "rollout", "values": "values", "update": "origins"}
    for name, field in guided.items():
        assert plan.network_evaluations[name] == 2 * groups * sum(getattr(one, field) for one in one_by_one), name
    drawn = 13 if config.rollout.explore else 12
    pictures = [groups * (drawn + one.inner) + plan.candidates for one in one_by_one]
    held_out = plan.evaluations * 13
    assert plan.decodes == sum(pictures) + held_out
    asked = [sum(reward.asked(i) for reward in config.rewards) for i in range(iterations)]
    assert plan.reward_calls == sum(p * a for p, a in zip(pictures, asked, strict=True)) + held_out


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 60))
def test_a_cycle_adds_up_what_it_goes_through(values, each, iterations):
    assert Cycle(values, each).total(iterations) == sum(values[i // each % len(values)] for i in range(iterations))


@given(SCHEDULES, st.integers(1, 60))
def test_phases_are_where_a_schedule_is_not_zero(schedule, iterations):
    (reward,) = config_of(rewards=[{"name": "shapes", "schedule": [[0, 1.0]]}]).rewards
    reward = reward.model_copy(update={"schedule": tuple(map(tuple, schedule))})
    found = [holds for start, end, holds in phases(iterations, reward.corners, reward.asked) for _ in range(start, end)]
    assert found == [reward.asked(i) for i in range(iterations)]


def test_millions_of_iterations_are_planned_like_seven():
    """Listing them took minutes and 19 GB."""
    schedule = [[0, 1.0], [5_000_000, 0.0], [5_000_007, 0.0]]
    plan = make_plan(
        config_of(
            run={"iterations": 10_000_000, "eval_every": 1},
            rollout={"steps": 200, "stochastic": {"kind": "window", "size": 3, "slide_every": 7}},
            rewards=[{"name": "shapes", "schedule": schedule}, {"name": "shapes_strict"}],
        )
    )
    assert plan.evaluations == 10_000_001
    assert plan.network_evaluations["rollout"] == 10_000_000 * 30 * 200 * 2
    assert plan.reward_calls == 30 * (5_000_000 + 10_000_000) + 10_000_001 * 13


def test_an_iteration_without_any_reward_is_found_among_millions():
    rewards = [
        {"name": "shapes", "schedule": [[0, 1.0], [3_999_999, 0.0]]},
        {"name": "shapes_strict", "schedule": [[4_000_000, 0.0], [4_000_001, 1.0]]},
    ]
    with pytest.raises(ConfigError, match="all 0 in iteration 3999999"):
        config_of(run={"iterations": 10_000_000}, rewards=rewards)
