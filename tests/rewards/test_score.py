"""Every scorer's values, scaled and summed; failures stay failures."""

import math
import re

import pytest
import torch

from diffrl.functional.advantages import group_advantage
from diffrl.records import Prompt
from diffrl.rewards.score import WeightedScorer, score
from reward_models.base import RewardOutput, ScorerSpec, WithoutWeights

PROMPTS = [Prompt(f"prompt {i}", {"number": i}) for i in range(7)]
IMAGES = torch.arange(7, dtype=torch.uint8).reshape(7, 1, 1, 1).expand(7, 3, 2, 5)


class Table(WithoutWeights):
    """Scores image i with values[i]; remembers what it was asked."""

    spec = ScorerSpec("table", "values from a list", (0.0, 1.0))

    def __init__(self, values, errors=None):
        self.values, self.errors, self.batches = values, errors or {}, []

    def __call__(self, batch):
        self.batches.append(batch)
        rows = [int(picture[0, 0, 0]) for picture in batch.media]
        ok = torch.tensor([row not in self.errors for row in rows])
        raw = torch.tensor([self.values[row] for row in rows], dtype=torch.float64)
        return RewardOutput(raw, ok, [self.errors.get(row) for row in rows], {"double": 2 * raw})


def test_totals_are_weighted_sums_of_scaled_scores():
    first, second = [0.3, 0.1, 0.9, 0.5, 0.2, 0.7, 0.4], [11.0, 13.0, 17.0, 19.0, 23.0, 29.0, 31.0]
    table = score(
        [WeightedScorer("a", Table(first), 2.0, 0.25, 0.5), WeightedScorer("b", Table(second), -0.3, 20.0, 10.0)],
        IMAGES,
        PROMPTS,
    )
    expected = [2.0 * (a - 0.25) / 0.5 - 0.3 * (b - 20.0) / 10.0 for a, b in zip(first, second, strict=True)]
    assert table.total.tolist() == pytest.approx(expected, rel=1e-5)
    assert table.raw["a"].tolist() == pytest.approx(first) and table.raw["b"].tolist() == second
    assert table.parts["b/double"].tolist() == [2 * b for b in second] and set(table.parts) == {"a/double", "b/double"}
    assert bool(table.ok.all()) and list(table.errors) == [None] * 7
    assert table.total.dtype == table.raw["a"].dtype == torch.float32


def test_failed_samples_stay_nan_and_keep_the_first_reason():
    values = [0.0, math.nan, 2.0, math.inf, 4.0, 5.0, 6.0]
    first = WeightedScorer("first", Table(values, {5: "no face"}))
    second = WeightedScorer("second", Table([float(i) for i in range(7)], {5: "no text", 6: "no text"}))
    table = score([first, second], IMAGES, PROMPTS)
    assert table.ok.tolist() == [True, False, True, False, True, False, False]
    assert torch.equal(table.total.isnan(), ~table.ok) and table.total[4] == 8.0
    assert list(table.errors) == [
        None, "first: returned nan", None, "first: returned inf", None, "first: no face", "second: no text",
    ]  # fmt: skip
    assert table.raw["first"].isnan().tolist() == [False, True, False, True, False, True, False]
    assert table.raw["second"].isnan().tolist() == [False] * 5 + [True] * 2  # a failure's number is not to be read


@pytest.mark.parametrize(
    ("weighted", "total"),
    [
        ({"shift": -3e38}, "3e\\+38"),
        ({"weight": 1e6, "scale": 1e-6}, r"5e\+12"),
    ],
)
def test_a_total_that_is_no_reward_is_a_failed_sample(weighted, total):
    """Also where the settings' bounds do not hold, or are not enough."""
    table = score([WeightedScorer("a", Table([0.0] * 6 + [5.0]), **weighted)], IMAGES, PROMPTS)
    assert not table.ok[6] and table.total[6].isnan() and re.search(f"the weighted total is {total}", table.errors[6])
    assert table.raw["a"][6] == 5.0
    if "shift" not in weighted:
        assert table.ok[:6].all() and table.total[:6].tolist() == [0.0] * 6


@pytest.mark.parametrize("huge", [-3e38, 2e12, 1e300])
def test_one_huge_score_fails_alone(huge):
    """Next to it the others' differences would be lost: their group would train on nothing but it."""
    values = [0.0, 0.1, 0.2, huge, 0.4, 0.5, 0.6]
    table = score([WeightedScorer("a", Table(values))], IMAGES, PROMPTS)
    assert table.ok.tolist() == [i != 3 for i in range(7)] and "returned " in table.errors[3]
    advantage = group_advantage(table.total, torch.zeros(7, dtype=torch.int64)).advantage
    assert advantage[3] == 0 and (advantage[[0, 1, 2, 4, 5, 6]].diff() > 0.4).all()


def test_a_watched_reward_changes_nothing_even_where_it_fails():
    plain = score([WeightedScorer("a", Table([float(i) for i in range(7)]))], IMAGES, PROMPTS)
    watched = score(
        [
            WeightedScorer("a", Table([float(i) for i in range(7)])),
            WeightedScorer("b", Table([9.0] * 6 + [math.nan]), weight=0.0),
        ],
        IMAGES,
        PROMPTS,
    )
    assert torch.equal(plain.total, watched.total) and bool(watched.ok.all()) and watched.errors == plain.errors
    assert watched.raw["b"].isnan().tolist() == [False] * 6 + [True]
