"""What is shown while a run goes on."""

import io

import pytest
from rich.console import Console

from diffrl.run.progress import BLOCKS, Progress, duration, sparkline


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.4, "59s"), (60, "1m 00s"), (185.2, "3m 05s"), (7620, "2h 07m")]
)
def test_durations_read_as_people_say_them(seconds, text):
    assert duration(seconds) == text


def test_a_curve_rises_where_its_values_do():
    assert sparkline([]) == ""
    assert sparkline([2.0, 2.0]) == BLOCKS[0] * 2
    assert sparkline(list(range(8))) == BLOCKS
    long = sparkline([float(i) for i in range(1000)], width=30)
    assert len(long) == 30 and list(long) == sorted(long) and long[0] == BLOCKS[0] and long[-1] == BLOCKS[-1]


def test_without_a_terminal_there_are_plain_lines():
    written = io.StringIO()
    with Progress(Console(file=written, width=200), total=3) as progress:
        progress.held_out(0, "strict 0.250")
        for done in (1, 2, 3):
            progress.iteration(done, 0.1 * done, seconds=0.5)
        progress.message("[not markup] something")
    text = written.getvalue()
    assert "held-out after 0 iterations: strict 0.250" in text
    assert "1/3" in text and "3/3" in text and "2.00 it/s" in text and "ETA" in text
    assert "[not markup] something" in text and "\x1b" not in text


def test_on_a_terminal_there_is_one_panel_with_curve_rate_and_eta():
    written = io.StringIO()
    with Progress(Console(file=written, width=120, force_terminal=True), total=4) as progress:
        progress.resume(2, [0.1, 0.2])
        progress.iteration(3, 0.4, seconds=0.25)
    text = written.getvalue()
    assert "3/4" in text and "now 0.400" in text and "4.00 it/s" in text and BLOCKS[-1] in text


def test_other_ranks_are_silent_but_for_messages():
    written = io.StringIO()
    with Progress(Console(file=written), total=1, quiet=True) as progress:
        progress.held_out(0, "strict 0.1")
        progress.iteration(1, 0.5, seconds=1.0)
        progress.message("rank 1 has something to say")
    assert written.getvalue() == "rank 1 has something to say\n"
