"""What every page says first: the answer, in about two seconds of reading, with the numbers of the stores."""

from __future__ import annotations

import html
import json
import re
from statistics import fmean

import pytest
from scipy import stats

from diffrl.gallery.trees.story import opening
from diffrl.gallery.trees.view import tree_view
from diffrl.gallery.votes import add_vote
from tests.gallery import made_trees
from tests.gallery.made import make_run
from tests.gallery.made_trees import split
from tests.gallery.test_compare import stored
from tests.gallery.test_score_table import SKILL, noisy
from tests.gallery.test_votes import side


def first_words(page: str) -> str:
    """The heading and what belongs to it."""
    main = page.partition("<main")[2]
    heading = re.search(r"<h1[^>]*>(.*?)</h1>", main, re.S)[1]
    more = re.search(r'<p class="opening">(.*?)</p>', main, re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", f"{heading} {more[1] if more else ''}")).split())


@pytest.fixture
def three(tmp_path, client_of):
    runs = {name: noisy(tmp_path / name) for name in SKILL}
    return client_of(*runs.values()), {name: stored(run, 4, "shapes") for name, run in runs.items()}


def test_the_best_of_three_and_by_how_much_of_the_next(three):
    """The difference and whether it is told are scipy's, whatever column is the baseline."""
    client, tables = three
    best, second = sorted(tables, key=lambda name: -fmean(tables[name].values()))[:2]
    groups: dict[str, list[float]] = {}
    for key, value in tables[best].items():
        groups.setdefault(key[0], []).append(value - tables[second][key])
    low, high = stats.ttest_1samp([fmean(own) for own in groups.values()], 0).confidence_interval(0.95)
    change = f"{fmean(map(fmean, groups.values())):+.3f}".replace("-", "−")
    for columns in (SKILL, reversed(SKILL)):
        address = "&".join(f"columns={name}@eval-4" for name in columns)
        words = first_words(client.get(f"/compare?{address}&reward=shapes").text)
        assert words.startswith(f"Best: {best}, shapes {fmean(tables[best].values()):.3f}, "), words
        assert second in words and change in words and ("not distinguishable" in words) == (low <= 0 <= high)


def test_the_mean_of_the_samples_stays_when_fewer_are_shown(three):
    client, tables = three
    expected = f"shapes {fmean(tables['two'].values()):.3f}, the mean of 36 samples"
    for more in ("", "&prompt=prompt+1"):
        assert first_words(client.get(f"/compare?columns=two@eval-4&reward=shapes{more}").text) == expected


def test_the_start_names_the_highest_run_only_if_all_are_measured_alike(tmp_path, client_of):
    runs = [make_run(tmp_path / name) for name in ("one", "two")]
    client = client_of(*runs)
    assert first_words(client.get("/").text) == "2 runs", "equal runs: none is higher"
    rows = [json.loads(line) for line in (runs[1] / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["held_out/shapes_strict"] = 0.875
    (runs[1] / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = "Highest held-out shapes_strict: two, 0.875; ±0.000 over one, 95 % ±0.000 to ±0.000"
    assert first_words(client.get("/").text) == words, "the samples, which the difference is of, are still equal"
    other = (runs[0] / "config.yaml").read_text().replace("seed: 0", "seed: 1")
    (runs[0] / "config.yaml").write_text(other)
    assert first_words(client_of(*runs).get("/").text) == "2 runs in 1 arm", "seeds are no rivals"
    config = (runs[0] / "config.yaml").read_text().replace("steps: 3", "steps: 4")
    (runs[0] / "config.yaml").write_text(config)
    assert first_words(client_of(*runs).get("/").text) == "2 runs"


def test_a_tree_says_which_split_mattered_and_a_pool_what_was_drawn_again():
    words = opening(tree_view(made_trees.forest()))
    assert words == "The split at 2, noise level 1.00, mattered most: its branches came to 2a 1.000 and 2b 0.250."
    pool = made_trees.pool(12, 6, 1)
    drawn = sum(node.leaf is not None and node.sampled for node in pool.nodes)
    assert opening(tree_view(pool)).startswith(f"{drawn} of 12 candidates were generated again. The best image is ")
    level = {"value": 0.5, "leaf": made_trees.leaf(0.5, (0,))}
    assert "All 2 images have the same reward, 0.500" in opening(tree_view(split(level, level)))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ("bbbbbbbb", "evaluation 4 is preferred to evaluation 0: 8 votes"),
        ("e", "1 vote cannot tell evaluation 0 from evaluation 4"),
    ],
)
def test_votes_say_who_is_preferred(made, client_of, tmp_path, choices, words):
    names = {"a": "a", "b": "b", "e": "tie"}
    for group, choice in enumerate(choices):
        sides = [side(state, ("p", 0, group, 0, ""), str(made.resolve())) for state in ("eval-0", "eval-4")]
        add_vote(tmp_path / "votes.jsonl", "", "s", *sides, "a", names[choice])
    assert first_words(client_of(made).get("/votes").text) == words
