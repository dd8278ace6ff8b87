"""Equal effort: every space holds valid settings, and a search is the same however often it was cut."""

import pytest
import tune_methods as script
from measuring.spaces import FOLDERS, REGIMES, SPACES, best, read_trials, trials_file

from diffrl.studies.compare.arguments import load_candidates, parse_candidates


@pytest.mark.parametrize("world", FOLDERS)
@pytest.mark.parametrize("method", SPACES)
def test_every_choice_of_every_knob_is_a_configuration(method, world):
    space = SPACES[method]
    assert {knob: choice in space.knobs[knob] for knob, choice in space.start.items()} == dict.fromkeys(
        space.knobs, True
    )
    chosen = [{**space.start, knob: choice} for knob, choices in space.knobs.items() for choice in choices]
    for regime in REGIMES:
        arms = [f"arm {n}: {space.settings(choices, world, regime)}" for n, choices in enumerate(chosen)]
        assert len(load_candidates(parse_candidates(arms), None)) == len(chosen)


def score(choices):
    """Of a made-up method: the more a choice stands to the right in its knob, the better."""
    knobs = SPACES["awm"].knobs
    return sum(list(knobs[knob]).index(choice) for knob, choice in choices.items()) / 10


def search(trials, confirm, batches=None):
    made = []
    while asked := script.next_trials(SPACES["awm"], made, trials, confirm):
        if batches is not None and not batches:
            return made
        batches = None if batches is None else batches - 1
        rows = [{"method": "awm", "seed": seed, "choices": choices, "score": score(choices)} for choices, seed in asked]
        assert len({row["seed"] for row in rows}) == 1  # runs beside each other are pairs
        made += rows
    return made


def test_a_search_has_its_trials_once_each_and_then_two_more_seeds_of_the_best():
    made = search(9, 3)
    first, more = made[:9], made[9:]
    assert first[0]["choices"] == SPACES["awm"].start and {row["seed"] for row in first} == {100}
    assert len({str(row["choices"]) for row in first}) == 9 and len(more) == 6
    least = sorted((row["score"] for row in first), reverse=True)[2]
    assert all(row["score"] >= least for row in more)
    assert sorted(row["seed"] for row in more) == [101, 101, 101, 102, 102, 102]
    winner, mean, seeds = best("awm", made)
    assert mean == max(row["score"] for row in more) == score(winner) and seeds == 3


def test_a_search_that_was_cut_goes_on_as_it_would_have(monkeypatch):
    whole = search(8, 2)
    for batches in (1, 3, 5):
        made = search(8, 2, batches)
        asked = script.next_trials(SPACES["awm"], made, 8, 2)
        following = whole[len(made) : len(made) + len(asked)]
        assert asked == [(row["choices"], row["seed"]) for row in following]


def test_a_trial_that_broke_off_is_no_best():
    rows = [
        {"method": "awm", "seed": 100, "choices": {"rate": str(n)}, "score": s} for n, s in enumerate((0.2, None, 0.1))
    ]
    assert best("awm", rows) == ({"rate": "0"}, 0.2, 1)


@pytest.mark.parametrize(
    "path", sorted(trials_file("shapes", "plain").parent.glob("*.jsonl")), ids=lambda path: path.stem
)
def test_kept_trials_are_of_the_spaces(path):
    for trial in read_trials(path):
        knobs = SPACES[trial["method"]].knobs
        assert all(choice in knobs[knob] for knob, choice in trial["choices"].items())
        missing = knobs.keys() - trial["choices"]
        assert missing <= ({"updates"} if trial["method"] == "diffrl" else set()), "a knob that came later"
