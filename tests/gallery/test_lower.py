"""Rewards of which less is better: whatever judges a change says so, and the numbers stay what they are."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from PIL import Image

from diffrl.gallery.columns import lower_rewards, named
from diffrl.gallery.links import ServerLinks
from diffrl.gallery.query import Query
from diffrl.gallery.ranking import tallies
from diffrl.gallery.records import State, falls
from diffrl.gallery.report import report_document
from diffrl.gallery.runs import RunSource
from diffrl.gallery.scoring import score_folders
from diffrl.gallery.site import Site
from diffrl.gallery.sources import find_sources
from diffrl.gallery.votes import add_vote, read_votes, side_of
from diffrl.tracking.store import SampleStore, StoredSample
from reward_models import RewardBatch, RewardOutput, ScorerSpec
from tests.gallery.made import flat
from tests.gallery.test_run_table import cells_of

BLUR = {"sharper": (0.9, 0.2), "a bit": (0.5, 0.4), "same": (0.3, 0.3), "blurred": (0.1, 0.6), "failed": (0.2, None)}
"""Before and after, by prompt: better by 0.7 and by 0.1, the same, worse by 0.5, unknown."""
BEST_FIRST = ["sharper", "a bit", "same", "blurred", "failed"]
WORST_FIRST = ["blurred", "same", "a bit", "sharper", "failed"]
CHIPS = {
    "sharper": ("gain", "−0.700"),
    "a bit": ("gain", "−0.100"),
    "same": ("", "±0.000"),
    "blurred": ("loss", "+0.500"),
}
RECORD = {
    "training": {"blur": {"higher_is_better": True}, "clean": {"higher_is_better": True}},
    "held_out": {"blur": {"higher_is_better": False}, "clean": {"higher_is_better": True}},
}
EVAL = State("eval", 0)


class Glare:
    """Mean brightness, which is to be lowered."""

    spec = ScorerSpec("glare", "mean brightness", (0.0, 1.0), higher_is_better=False, uses_prompt=False)

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        raw = batch.media.float().mean((1, 2, 3)) / 255
        return RewardOutput(raw, torch.ones(len(raw), dtype=torch.bool), [None] * len(raw), {"half": raw / 2})

    def to(self, device):
        return self


def write(run, record=RECORD):
    """A run whose blur is held out, with its part "edge"; the reward `clean` is the opposite."""
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("run: {iterations: 2}\n")
    (run / "environment.json").write_text("{}")
    if record is not None:
        (run / "rewards.json").write_text(record if isinstance(record, str) else json.dumps(record))
    rows = [
        {"iteration": 0, "held_out/blur": 0.4, "held_out/blur/edge": 0.2, "held_out/clean": 0.6},
        {"iteration": 2, "held_out/blur": 0.375, "held_out/blur/edge": 0.25, "held_out/clean": 0.625},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with SampleStore(run) as store:
        for place, iteration in enumerate((0, 2)):
            store.write([sample(iteration, n, prompt, pair[place]) for n, (prompt, pair) in enumerate(BLUR.items())])
    return run


def sample(iteration, group, prompt, blur):
    rewards = {"blur": blur, "blur/edge": blur, "clean": None if blur is None else 1 - blur}
    fields = {"stage": "eval", "seed": 0, "root": 0, "picture": flat(group / 7), "total": blur, "rewards": rewards}
    return StoredSample(iteration=iteration, group=group, prompt=prompt, **fields)


@pytest.fixture
def run(tmp_path):
    return write(tmp_path / "runs" / "made")


def rows_of(page):
    """Prompt, class and text of the chip of every row, as the page has them."""
    found = []
    for row in page.split('<li class="item"')[1:]:
        prompt = re.search(r'<p class="prompt"[^>]*>(.*?)</p>', row)[1]
        chip = re.search(r'<span class="chip (\w*)" title="change of [^"]*">([^<]*)<', row)
        found.append((prompt, (chip[1], chip[2]) if chip else None))
    return found


def counts_of(page):
    """The counts of the summary."""
    return dict(re.findall(r'data-count="(\w+)">([^<]*)<', page))


@pytest.mark.parametrize(
    ("reward", "shown"), [("blur", "blur (lower is better)"), ("blur/edge", "blur/edge (lower is better)")]
)
def test_a_fall_is_an_improvement_and_keeps_its_sign(run, client_of, reward, shown):
    client = client_of(run)
    page = client.get(f"/compare?run=made&reward={reward}").text
    assert dict(rows_of(page)) == {**CHIPS, "failed": None}
    counts = counts_of(page)
    assert (counts["improved"], counts["unchanged"], counts["worse"], counts["rows"]) == ("2", "1", "1", "5")
    assert counts["reward"] == shown and counts["mean"] == "−0.075"  # (-0.7 - 0.1 + 0 + 0.5) / 4
    for sort, expected in (("gain", BEST_FIRST), ("loss", WORST_FIRST)):
        found = [prompt for prompt, _ in rows_of(client.get(f"/compare?run=made&reward={reward}&sort={sort}").text)]
        assert found == expected, sort
    highest = [prompt for prompt, _ in rows_of(client.get(f"/compare?run=made&reward={reward}&sort=value").text)]
    assert highest == ["blurred", "a bit", "same", "sharper", "failed"], "a value is a value"


def test_every_reward_of_a_row_is_judged_its_own_way(run, client_of):
    page = client_of(run).get("/compare?run=made&reward=clean").text
    table = re.search(r'<details class="all" id="all-0">(.*?)</details>', page, re.S)[1]
    found = re.findall(r'<th scope="row"[^>]*>([^<]*)</th>.*?<td class="number (\w*)">([^<]*)</td></tr>', table)
    assert found == [
        ("total", "loss", "−0.700"),
        ("blur (lower is better)", "gain", "−0.700"),
        ("clean", "gain", "+0.700"),
        ("blur/edge (lower is better)", "gain", "−0.700"),
    ]
    told = 'title="total: the sum of weight · (value − shift) / scale'
    assert f'<th scope="row" {told}' in table and f'<select name="reward" {told}' in page


def test_the_overview_the_table_and_the_report_agree(run, tmp_path, client_of):
    write(tmp_path / "runs" / "other", record=None)
    client = client_of(run, tmp_path / "runs" / "other")
    overview, home = client.get("/run?run=made").text, client.get("/").text
    assert re.search(r'held-out blur \(lower is better\)</span>.*?<span class="chip "[^>]*>−0.025<', overview, re.S)
    assert re.search(r'blur/edge \(lower is better\)</th>.*?<td class="number ">\+0.050<', overview)
    assert "Numbers: blur (lower is better)." in overview and dict(rows_of(overview))["sharper"] == CHIPS["sharper"]
    assert "blur (lower is better)</th>" in home and cells_of(home)["made"][2] == "−0.025"
    report = report_document(RunSource("made", run))
    assert "Held-out blur (lower is better) fell from 0.400 to 0.375 between iterations 0 and 2." in report
    assert re.search(r'held-out blur \(lower is better\)</span>.*?<span class="chip "[^>]*>−0.025<', report, re.S)
    assert re.search(r'held-out clean</span>.*?<span class="chip "[^>]*>\+0.025<', report, re.S)


@pytest.mark.parametrize(
    "record",
    [
        None,
        *("{", "\udcff", '{"a":' * 3000, '{"held_out": ["blur"]}', '{"held_out": {"blur": []}}'),
        '{"held_out": {"blur": {"higher_is_better": 0}}}',
    ],
    ids=lambda record: str(record)[:40],
)
def test_where_nothing_is_known_more_is_better(tmp_path, client_of, record):
    run = write(tmp_path / "made", None)
    if record is not None:
        (run / "rewards.json").write_bytes(record.encode("utf-8", "surrogateescape"))
    assert RunSource("made", run).lower_is_better(EVAL) == frozenset()
    answer = client_of(run).get("/compare?run=made&reward=blur&sort=gain")
    assert answer.status_code == 200 and "lower is better" not in answer.text
    assert [prompt for prompt, _ in rows_of(answer.text)] == ["blurred", "same", "a bit", "sharper", "failed"]
    assert counts_of(answer.text)["improved"] == "1"


def test_a_stage_has_the_rewards_that_it_was_scored_with(run):
    source = RunSource("made", run)
    assert source.lower_is_better(EVAL) == {"blur"} and source.lower_is_better(State("train", 1)) == frozenset()
    assert source.lower_is_better(State("generate", 0)) == {"blur"}
    assert falls("blur/edge", {"blur"}) and not falls("blurred", {"blur"}) and not falls("total", {"total"})


def test_columns_of_a_run_that_knows_and_one_that_does_not_are_judged_alike(run, tmp_path):
    sources = [RunSource("made", run), RunSource("other", write(tmp_path / "runs" / "other", None))]
    for order in (sources, sources[::-1]):
        columns = named([(source, EVAL) for source in order])
        assert lower_rewards(columns, ["total", "blur", "blur/edge", "clean"]) == {"blur", "blur/edge"}


def test_a_vote_keeps_which_way_its_rewards_go(run, tmp_path, client_of):
    source, file = RunSource("made", run), tmp_path / "votes.jsonl"
    states = [state for state in source.states() if state.stage == "eval"]
    sides = [
        [side_of(source, state, one) for one in source.samples(state, [b.id for b in source.briefs(state, None)])]
        for state in states
    ]
    for a, b in zip(*sides, strict=True):  # who votes likes what is sharper
        before, after = BLUR[a.sample[0]]
        choice = "tie" if after in (None, before) else "b" if after < before else "a"
        add_vote(file, "", "s", a, b, "a", choice)
    votes = read_votes(file).votes
    assert all(vote.a.lower == vote.b.lower == ("blur",) for vote in votes)
    (tally,) = tallies(votes)
    opinions = {one.reward: one for one in tally.opinions}
    for name, lower, agreed, prefers in (
        ("blur", True, 3, 2),
        ("blur/edge", True, 3, 2),
        ("clean", False, 3, 2),
        ("total", False, 0, 1),
    ):
        one = opinions[name]
        assert one.lower is lower and (one.agrees.wins, one.agrees.trials) == (agreed, 3), name
        assert (one.prefers_b.wins, one.undecided, one.unknown) == (prefers, 1, 1), name
    page = client_of(run).get("/votes").text
    rows = dict(re.findall(r'<tr><td>([^<]*)</td><td class="number">([^<]*) <', page))
    assert rows["blur (lower is better)"] == "67&nbsp;%" and rows["total"] == "33&nbsp;%"
    assert re.search(r"blur 0\.900 → 0\.200 <span class=\"soft\">\(B\)", page)


def test_folders_take_it_from_the_scorer(tmp_path):
    for name, light in (("base", 200), ("aligned", 100)):
        (tmp_path / name).mkdir()
        Image.new("RGB", (40, 40), (light, light, light)).save(tmp_path / name / "0.png")
    sources = find_sources([tmp_path / "base", tmp_path / "aligned"])
    assert sources[0].lower_is_better(State("folder", 0)) == frozenset(), "without scores nothing is known"
    score_folders(sources, ["glare=tests.gallery.test_lower:Glare"], print, tmp_path / "cache.sqlite")
    page = Site(sources, ServerLinks("test")).answer("compare", Query({"reward": ["glare"]})).body
    [(_, chip)] = rows_of(page)
    assert chip == ("gain", "−0.392") and counts_of(page)["reward"] == "glare (lower is better)"  # 100 / 255
    assert 'value="glare/half" data-lower>glare/half (lower is better)<' in page


def test_votes_of_an_older_gallery_are_read_as_before(run, tmp_path):
    source, file = RunSource("made", run), tmp_path / "votes.jsonl"
    (a,), (b,) = (
        [side_of(source, state, one) for one in source.samples(state, [source.briefs(state, None)[0].id])]
        for state in source.states()
    )
    add_vote(file, "", "s", a, b, "a", "b")
    line = json.loads(file.read_text())
    for name in "ab":
        del line[name]["lower"]
    file.write_text(json.dumps(line) + "\n")
    (vote,) = read_votes(file).votes
    assert (vote.a, vote.b) == (replace(a, lower=()), replace(b, lower=()))
    (tally,) = tallies([vote])
    assert {one.reward: one.prefers_b.wins for one in tally.opinions}["blur"] == 0
