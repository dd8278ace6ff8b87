"""Which steps are stochastic: never the last, windows of constant size, sliding and going back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffrl.rollout.stochastic import stochastic_steps


def test_all_steps_but_the_last():
    assert stochastic_steps("all", 5, iteration=3) == (0, 1, 2, 3)


def test_a_window_stays_where_it_is():
    assert [stochastic_steps("window", 7, iteration, start=2, size=3) for iteration in (0, 1, 99)] == [(2, 3, 4)] * 3


def test_a_window_slides_and_goes_back_to_the_first_step():
    seen = [stochastic_steps("window", 6, iteration, start=1, size=3, slide_every=2) for iteration in range(8)]
    assert seen == [(1, 2, 3)] * 2 + [(2, 3, 4)] * 2 + [(0, 1, 2)] * 2 + [(1, 2, 3)] * 2


@given(st.data())
def test_steps_are_ascending_constant_in_number_and_before_the_last(data):
    steps = data.draw(st.integers(2, 60))
    size = data.draw(st.integers(1, steps - 1))
    start = data.draw(st.integers(0, steps - 1 - size))
    slide_every = data.draw(st.none() | st.integers(1, 20))
    found = stochastic_steps("window", steps, data.draw(st.integers(0, 10_000)), start, size, slide_every)
    assert len(found) == size and found == tuple(range(found[0], found[0] + size))
    assert found[0] >= 0 and found[-1] <= steps - 2


def test_a_full_cycle_gives_every_trainable_step_its_turn():
    visited = {step for i in range(8) for step in stochastic_steps("window", 11, i, size=3, slide_every=1)}
    assert visited == set(range(10))


@pytest.mark.parametrize(("start", "size"), [(0, 7), (5, 2), (-1, 2), (0, 0), (0, None)])
def test_a_window_that_does_not_fit_is_refused(start, size):
    with pytest.raises(ValueError, match=r"Got (start|kind)="):
        stochastic_steps("window", 7, 0, start, size)
