"""Rankings by votes: against closed forms, brute force and simulated voters whose preferences are known."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import minimize

from diffrl.gallery.ranking import Z, bradley_terry, parts, rankings, tallies
from diffrl.gallery.votes import Side, Vote, add_vote
from diffrl.statistics import LEVEL
from tests.gallery.made import add_evaluation, make_run


def vote(first: str, second: str, choice: str, number: int) -> Vote:
    sides = [Side(f"run {name}", f"/runs/{name}", "eval-4", ("p", 0, number, 0, ""), "") for name in (first, second)]
    return Vote(f"{first}{second}{number}", "2026-01-01", "", "s", "p", *sides, "a", choice)


def ranked(*given: tuple[str, str, str, int]):
    """Rankings of so many votes each: (A, B, choice, count)."""
    return rankings(tallies([vote(a, b, choice, n) for a, b, choice, count in given for n in range(count)]))


@pytest.mark.parametrize(("won", "lost"), [(7.5, 3.5), (11, 0), (1, 0)])
def test_of_two_it_is_the_empirical_logit(won, lost):
    strengths, covariance = bradley_terry(np.array([[0, won], [lost, 0]]))
    assert strengths[0] - strengths[1] == pytest.approx(math.log((won + 0.5) / (lost + 0.5)), abs=1e-6)
    variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    assert variance == pytest.approx(1 / (won + 0.5) + 1 / (lost + 0.5), rel=1e-5)
    assert strengths.sum() == pytest.approx(0, abs=1e-9)


def test_of_four_the_most_likely_strengths_and_their_curvature():
    """Vote by vote, by a search that knows no slope; the information by finite differences of it."""
    pairs = {(0, 1): (5, 2), (1, 2): (3, 0), (2, 3): (4, 4.5), (0, 3): (6, 0)}  # 0-2 and 1-3 never met
    wins = np.zeros((4, 4))
    for (i, j), (won, lost) in pairs.items():
        wins[i, j], wins[j, i] = won, lost
    extra = 3 / (2 * len(pairs))  # three free strengths: three imaginary votes, half to each side of four pairs

    def unlikely(free):
        s, found = [0.0, *free], 0.0
        for (i, j), (won, lost) in pairs.items():
            chance = math.exp(s[i]) / (math.exp(s[i]) + math.exp(s[j]))
            found -= (won + extra) * math.log(chance) + (lost + extra) * math.log(1 - chance)
        return found

    best = minimize(unlikely, [0.0] * 3, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12, "maxiter": 9999})
    strengths, covariance = bradley_terry(wins)
    assert strengths - strengths[0] == pytest.approx([0, *best.x], abs=1e-4)
    h, steps = 1e-3, 1e-3 * np.eye(3)
    at = [[unlikely(best.x + a + b) - unlikely(best.x + a - b) for b in steps] for a in steps]
    back = [[unlikely(best.x - a + b) - unlikely(best.x - a - b) for b in steps] for a in steps]
    information = (np.array(at) - np.array(back)) / (4 * h * h)
    less = np.hstack([-np.ones((3, 1)), np.eye(3)])  # of the others, less the first
    assert less @ covariance @ less.T == pytest.approx(np.linalg.inv(information), rel=1e-3)


@pytest.mark.parametrize("votes", [12, 60])
def test_intervals_hold_the_truth_as_often_as_they_say(votes):
    truth = np.array([1.0, 0.2, -0.1, -1.1])
    draw = np.random.default_rng(votes)
    held = trials = 0
    for _ in range(250):
        wins = np.zeros((4, 4))
        for i, j in combinations(range(4), 2):
            wins[i, j] = draw.binomial(votes, 1 / (1 + math.exp(truth[j] - truth[i])))
            wins[j, i] = votes - wins[i, j]
        strengths, covariance = bradley_terry(wins)
        for i, j in combinations(range(4), 2):
            error = math.sqrt(covariance[i, i] + covariance[j, j] - 2 * covariance[i, j])
            held += abs(strengths[i] - strengths[j] - truth[i] + truth[j]) < Z * error
        held += int((np.abs(strengths - truth) < Z * np.sqrt(np.diag(covariance))).sum())
        trials += 10
    assert LEVEL - 0.02 < held / trials < LEVEL + 0.03


def test_places_and_shares_of_a_ranking():
    (found,) = ranked(
        ("x", "y", "a", 30), ("x", "y", "b", 4), ("y", "z", "a", 6), ("z", "y", "a", 5), ("y", "z", "tie", 3)
    )
    assert [one.side.path[-1] for one in found] == ["x", "y", "z"]
    assert [(one.rate.wins, one.rate.trials - one.rate.wins, one.ties) for one in found] == [
        (30, 4, 0),
        (10, 35, 3),
        (5, 6, 3),
    ]
    assert [(one.first, one.last) for one in found] == [(1, 1), (2, 3), (2, 3)], "y and z are not told apart"
    assert (
        all(one.rate.low < one.rate.share < one.rate.high for one in found)
        and found[0].rate.low > 0.5 > found[1].rate.share
    )
    other = ranked(
        ("y", "x", "b", 30), ("y", "x", "a", 4), ("z", "y", "b", 6), ("z", "y", "a", 5), ("z", "y", "tie", 3)
    )
    assert [one.rate.share for one in other[0]] == pytest.approx([one.rate.share for one in found], abs=1e-6), (
        "who is called A"
    )


def test_a_set_that_never_lost_has_an_end_and_more_votes_move_it_on():
    few, many = (ranked(("x", "y", "a", n), ("y", "z", "a", n), ("z", "y", "a", n))[0] for n in (3, 60))
    assert few[0].first == few[0].last == 1 or few[0].rate.share < 1
    assert 0.5 < few[0].rate.share < many[0].rate.share < 1 and few[0].rate.low < many[0].rate.low
    (equal,) = ranked(("x", "y", "tie", 5), ("y", "z", "tie", 5))
    assert [round(one.rate.share, 6) for one in equal] == [0.5] * 3 and {(one.first, one.last) for one in equal} == {
        (1, 3)
    }


def test_what_no_chain_of_votes_connects_is_ranked_apart():
    assert not ranked(("x", "y", "a", 9)) and not ranked(("x", "y", "a", 2), ("v", "w", "b", 2)) and not ranked()
    both = ranked(*((p + a, p + b, "a", 2) for p in "12" for a, b in ("xy", "yz")), ("8", "9", "tie", 1))
    assert [sorted(one.side.path for one in ranking) for ranking in both] == [
        [f"/runs/{p}{name}" for name in "xyz"] for p in "12"
    ]
    with pytest.raises(ValueError, match="chain"):
        bradley_terry(np.array([[0, 1, 0], [2, 0, 0], [0, 0, 0.0]]))
    assert parts(np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]], dtype=bool)) == [[0, 2], [1]]


def test_the_page_of_votes_begins_with_the_ranking_and_offers_a_pair_that_exists(tmp_path, client_of):
    runs = [make_run(tmp_path / "runs" / name, prompts=["p", "q"], roots=1) for name in ("bare", "one", "two")]
    add_evaluation(runs[0], 6, ["p", "q"], roots=1, pictures=False)
    client = client_of(*runs)
    page = client.get("/votes").text
    chosen = [part.split('"')[0] for part in page.split('<option value="')[1:] if " selected" in part.split(">")[0]]
    assert chosen == ["one@eval-0", "one@eval-4"], "of the first run no image of the last evaluation was kept"
    assert client.get("/vote").status_code == 200
    for a, b, choice, count in (("x", "y", "a", 4), ("y", "z", "a", 4)):
        for n in range(count):
            one = vote(a, b, choice, n)
            add_vote(tmp_path / "votes.jsonl", "", "s", one.a, one.b, one.left, one.choice)
    page = client.get("/votes").text
    assert page.index('class="ranked"') < page.index("against") and page.count('<th scope="row">') == 3
    assert page.index("run x · evaluation 4") < page.index("run z · evaluation 4")
    lines = client.get("/ranking.csv").text.splitlines()
    assert len(lines) == 4 and [line.split(",")[1].split(" ")[:2] for line in lines[1:]] == [["run", n] for n in "xyz"]
    assert [line.split(",")[-3:] for line in lines[1:]] == [["4", "0", "0"], ["4", "4", "0"], ["0", "4", "0"]]
