"""The zoo of failures: its runs are configurations, its faulty rewards are what they say, its table is right."""

import failure_zoo as zoo
import pytest
import torch

from diffrl.config.load import load_config
from reward_models import RewardBatch, load_reward


@pytest.mark.parametrize("fault", zoo.FAULTS)
def test_every_run_is_a_configuration(fault):
    for cure in zoo.cures(fault).values():
        config = load_config(zoo.RECIPE, [*zoo.COMMON, *zoo.FAULTS[fault], *cure])
        assert config.run.evaluations > 4 and config.eval.rewards[0].key == zoo.REWARD


def test_the_faulty_rewards():
    images = torch.randint(0, 256, (4, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    batch = RewardBatch(images, ["a red circle"] * 4)
    graded, colour = (load_reward(name)(batch).raw for name in ("shapes", "colourfulness"))
    assert load_reward("measuring.faulty:Saturated")(batch).raw.tolist() == pytest.approx(
        [min(1.0, 10 * value) for value in graded.tolist()], rel=1e-6
    )
    assert load_reward("measuring.faulty:ColourBlind")(batch).raw.tolist() == pytest.approx(
        (graded + colour / 50).tolist(), rel=1e-6
    )


def test_the_table_by_hand():
    """Hacked at the third evaluation: the second is exported; blind runs are healthy, and named."""
    score = f"held_out/{zoo.REWARD}"
    bad = [
        {"iteration": 0, score: 0.2, "sentinel/alarms": 0},
        {"iteration": 5, score: 0.4, "sentinel/alarms": 0},
        {"iteration": 10, score: 0.1, "sentinel/alarms": 2, "sentinel/hacked": 2, "sentinel/back_to": 5},
        {"iteration": 15, score: 0.0, "sentinel/alarms": 1, "sentinel/collapsed": 1},
    ]
    blind = [{"iteration": 0, score: 0.2, "sentinel/alarms": 0}]
    blind += [{"iteration": 5, score: 0.2, "sentinel/alarms": 0, "sentinel/blind": 1}]
    made = [
        {"fault": "none", "cure": "nothing", "seed": seed, "evaluations": rows}
        for seed, rows in enumerate((bad, blind))
    ]
    (row,) = zoo.rows(made)
    assert row["named"] == "hacked at 2, blind at 1" and row["went back"] == "1, 0"
    assert row["last"] == "0.100 (0.000 0.200)" and row["exported"] == "0.300 (0.400 0.200)"
