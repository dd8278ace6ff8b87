"""What is shown while a run goes on."""

import io

import pytest
from rich.console import Console

from diffrl import pulse
from diffrl.terminal import watch
from diffrl.terminal.progress import BLOCKS, Progress, sparkline
from diffrl.terminal.watch import Counts, duration, watched


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
        pulse.begin("iteration 4", {"rollout": 60})
        with pulse.phase("rollout"):
            pulse.advance(pulse.NETWORK, 12)
            progress.held_out(3, "strict 0.250")  # draws at once
    text = written.getvalue()
    assert "3/4" in text and "now 0.400" in text and "4.00 it/s" in text and BLOCKS[-1] in text
    assert "iteration 4: rollout, 12/60 network evaluations" in text and "after 3: strict 0.250" in text


@pytest.mark.parametrize(("seconds", "rate"), [(0.25, "4.00 it/s"), (12.5, "12.5 s/it"), (185.2, "3m 05s/it")])
def test_a_slow_rate_is_told_in_the_time_of_an_iteration(seconds, rate):
    written = io.StringIO()
    with Progress(Console(file=written, width=200), total=1) as progress:
        progress.iteration(1, 0.1, seconds=seconds)
    assert rate in written.getvalue() and (duration(59.4), duration(7620)) == ("59s", "2h 07m")


def test_other_ranks_are_silent_but_for_messages():
    written = io.StringIO()
    with Progress(Console(file=written), total=1, quiet=True) as progress:
        progress.held_out(0, "strict 0.1")
        progress.iteration(1, 0.5, seconds=1.0)
        progress.message("rank 1 has something to say")
    assert written.getvalue() == "rank 1 has something to say\n"


def test_counts_are_of_the_phase_for_the_network_and_of_the_whole_for_all_else():
    counts = Counts()
    with pulse.listening(counts):
        pulse.begin("iteration 4", {"rollout": 60, pulse.DECODED: 8})
        for _ in range(2):
            with pulse.phase("rollout"):
                pulse.advance(pulse.NETWORK, 15)
                assert counts.line().startswith("iteration 4: rollout, ")
            with pulse.phase("decode"):
                assert "network evaluations" not in counts.line()  # which were the rollout's
                with pulse.phase("trees"):
                    pulse.advance(pulse.DECODED, 4)
                    assert " samples decoded" in counts.line()
            with pulse.phase("rollout"):
                pulse.advance(pulse.NETWORK, 5)
        assert counts.line().startswith("iteration 4, 40/60 network evaluations, ")
        pulse.advance(pulse.DECODED, 1)  # more than was expected: better no total than a wrong one
        assert counts.line().startswith("iteration 4, 9 samples decoded, ")
    pulse.advance(pulse.DECODED, 5)
    assert "9 samples" in counts.line()


def test_where_lines_stay_they_are_few_and_reach_the_user_all_the_same(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now)
    with watched(Console(file=io.StringIO()), "drawing"):
        pulse.begin("drawing", {pulse.DECODED: 100_000})
        for _ in range(10_000):  # ten seconds each: more than a day
            now += 10.0
            pulse.advance(pulse.DECODED, 10)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "drawing, 30/100,000 samples decoded, 30s" and 60 < len(lines) < 150


def test_an_interrupted_command_says_what_it_leaves(capsys):
    with pytest.raises(KeyboardInterrupt), watched(Console(file=io.StringIO()), "drawing", lambda: "Two are kept."):
        raise KeyboardInterrupt
    assert "Two are kept." in capsys.readouterr().err
