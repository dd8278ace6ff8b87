"""Which steps are stochastic: never the last, windows of constant size; coarse grids keep them as they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffrl.functional.steps import coarse_levels, least_steps, stochastic_steps


def test_a_window_slides_and_goes_back_to_the_first_step():
    seen = [stochastic_steps("window", 6, iteration, start=1, size=3, slide_every=2) for iteration in range(8)]
    assert seen == [(1, 2, 3)] * 2 + [(2, 3, 4)] * 2 + [(0, 1, 2)] * 2 + [(1, 2, 3)] * 2


@given(st.data())
def test_steps_are_ascending_constant_in_number_and_before_the_last(data):
    steps = data.draw(st.integers(2, 60))
    size = data.draw(st.integers(1, steps - 1))
    start = data.draw(st.integers(0, steps - 1 - size))
    slide_every = data.draw(st.none() | st.integers(1, 20))
    iteration = data.draw(st.integers(0, 10_000))
    found = stochastic_steps("window", steps, iteration, start=start, size=size, slide_every=slide_every)
    assert len(found) == size and found == tuple(range(found[0], found[0] + size))
    assert found[0] >= 0 and found[-1] <= steps - 2


@pytest.mark.parametrize(("start", "size"), [(0, 7), (5, 2), (-1, 2), (0, 0), (0, None)])
def test_a_window_that_does_not_fit_is_refused(start, size):
    with pytest.raises(ValueError, match=r"Got (start=|'window', size=None)"):
        stochastic_steps("window", 7, 0, start=start, size=size)


@pytest.mark.parametrize("steps", [2, 3, 7, 20])
@pytest.mark.parametrize("kind", ["all", "splits", "none", "window"])
def test_the_last_step_never_is(kind, steps):
    splits = (0, steps - 2)[: min(2, steps - 1)] if kind in ("splits", "window", "all") else ()
    for iteration in range(2 * steps):
        found = stochastic_steps(kind, steps, iteration, splits, start=steps - 2, size=1, slide_every=1)
        assert set(splits) <= set(found) <= set(range(steps - 1))
        assert list(found) == sorted(set(found))


def test_splits_alone_and_none():
    assert stochastic_steps("splits", 20, 5, (3, 0, 9, 6)) == (0, 3, 6, 9)
    assert stochastic_steps("splits", 20, 5) == stochastic_steps("none", 20, 5) == ()
    assert stochastic_steps("all", 5, 0, (1, 3)) == (0, 1, 2, 3)


def test_splits_stay_while_the_window_slides():
    seen = [stochastic_steps("window", 6, i, (0, 4), start=1, size=2, slide_every=3) for i in range(15)]
    assert seen[::3] == [(0, 1, 2, 4), (0, 2, 3, 4), (0, 3, 4), (0, 1, 4), (0, 1, 2, 4)]
    assert all(seen[i] == seen[i - i % 3] for i in range(15))


@pytest.mark.parametrize("kind", ["all", "splits", "window", "none"])
@pytest.mark.parametrize("splits", [(6,), (0, 6), (-1,), (2, 99)])
def test_a_split_in_the_last_step_or_beyond_is_refused(kind, splits):
    with pytest.raises(ValueError, match=r"Splits must lie within steps 0 to 5. Got \["):
        stochastic_steps(kind, 7, 0, splits, size=2)


def test_no_noise_and_splits_are_refused():
    with pytest.raises(ValueError, match="kind='none' and splits"):
        stochastic_steps("none", 7, 0, (2,))


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="Got 'most'"):
        stochastic_steps("most", 7, 0, size=2)


@given(st.integers(2, 40), st.data())
def test_a_coarse_grid_keeps_both_ends_of_every_stochastic_step(full, data):
    stochastic = data.draw(st.sets(st.integers(0, full - 2), max_size=6))
    needed = {0, full} | stochastic | {step + 1 for step in stochastic}
    least = least_steps(stochastic, full)
    assert least == len(needed) - 1
    steps = data.draw(st.integers(least, full))
    levels = coarse_levels(full, stochastic, steps)
    assert len(levels) == steps + 1 and levels[0] == 0 and levels[-1] == full
    assert list(levels) == sorted(set(levels)) and needed <= set(levels)
    for step in stochastic:
        assert levels[levels.index(step) + 1] == step + 1
    gaps = [b - a for a, b in zip(levels, levels[1:], strict=False)]
    split = [b - a for a, b in zip(sorted(needed), sorted(needed)[1:], strict=False)]
    assert max(gaps) <= max(split)
    for steps_less in range(least, steps):  # finer grids only add
        assert set(coarse_levels(full, stochastic, steps_less)) <= set(levels)


@pytest.mark.parametrize(
    ("full", "stochastic", "steps", "levels"),
    [
        (7, (), 1, (0, 7)),
        (7, (), 2, (0, 3, 7)),
        (7, (), 3, (0, 3, 5, 7)),
        (8, (), 3, (0, 2, 4, 8)),
        (20, (0, 3), 5, (0, 1, 3, 4, 12, 20)),
        (20, (0, 3), 6, (0, 1, 3, 4, 8, 12, 20)),
        (20, (0, 3), 7, (0, 1, 3, 4, 8, 12, 16, 20)),
        (11, (6,), 5, (0, 3, 6, 7, 9, 11)),
        (5, (0, 1, 2, 3), 5, (0, 1, 2, 3, 4, 5)),
    ],
)
def test_the_largest_gap_is_halved_and_of_equals_the_first(full, stochastic, steps, levels):
    assert coarse_levels(full, stochastic, steps) == levels


@pytest.mark.parametrize(
    ("full", "stochastic", "steps", "least"), [(7, (2,), 2, 3), (7, (), 8, 1), (7, (), 0, 1), (9, (0, 3, 4), 4, 5)]
)
def test_a_grid_that_cannot_be_is_refused(full, stochastic, steps, least):
    with pytest.raises(ValueError, match=rf"needs {least} to {full} steps. Got {steps}"):
        coarse_levels(full, stochastic, steps)
