"""Which held-out samples keep their pictures."""

import math

from diffrl.tracking.pictured import most_changed, spread


def test_a_spread_is_of_many_prompts_and_else_of_the_first_samples():
    prompts = [f"prompt {i % 53}" for i in range(130)]
    found = spread(prompts, 7)
    assert len(found) == 7 and found[0] == 0 and found == sorted(found) and found[-1] < 53, "the first of each prompt"
    assert {b - a for a, b in zip(found, found[1:], strict=False)} == {7, 8}
    assert spread(prompts, 60) == list(range(60)) and spread(prompts, 999) == list(range(130))
    assert spread(prompts, 0) == [] and spread([], 3) == [] and spread(prompts, 1) == [0]


def test_most_changed_are_the_worst_losses_and_best_gains_with_both_numbers():
    before = [0.5, 0.5, 0.5, None, 0.5, 0.5, 0.5, 0.5, math.nan]
    now = [0.1, 0.9, 0.5, 0.0, 0.4, 0.7, None, 0.2, 0.9]
    assert most_changed(now, before, 3) == [0, 1, 7], "two losses and a gain"
    assert most_changed(now, before, 2) == [0, 1] and most_changed(now, before, 1) == [0]
    assert most_changed(now, before, 99) == [0, 1, 4, 5, 7], "neither what did not change nor what has no number"
    assert most_changed([1.0, 1.0 + 1e-9], [1.0, 1.0], 2) == [] == most_changed(now, before, 0)
