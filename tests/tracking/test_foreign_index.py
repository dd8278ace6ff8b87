"""An index of samples that somebody else made, or that was damaged: every question ends, in rows or a sentence."""

import sqlite3
import struct
from collections import Counter
from contextlib import closing

import pytest

from diffrl.errors import DiffrlError
from diffrl.gallery.records import State
from diffrl.gallery.runs import RunSource
from diffrl.tracking.index import INDEX, SCHEMA, SCHEMA_VERSION, connect
from diffrl.tracking.store import SampleStore
from reward_models import RewardError
from reward_models.common import stores
from reward_models.scoring.cache import SCHEMA as CACHE_SCHEMA
from reward_models.scoring.cache import ScoreCache
from reward_models.scoring.runs import samples_of_run

ENDLESS = "WITH RECURSIVE again(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM again) SELECT * FROM again"
FOREIGN = {
    "view": f"ALTER TABLE {{0}} RENAME TO theirs; CREATE VIEW {{0}} AS SELECT *, 1 AS x FROM ({ENDLESS}), theirs",
    "trigger": "CREATE TRIGGER theirs AFTER INSERT ON {0} BEGIN DELETE FROM {0}; END",
    "table": "CREATE VIRTUAL TABLE theirs USING fts5(words)",
    "generated column": "ALTER TABLE {0} ADD COLUMN theirs GENERATED ALWAYS AS (length(hex(zeroblob(100000000))))",
    "rule of writing": "CREATE TABLE theirs (x CHECK (length(hex(zeroblob(100000000))) > 0))",
    "rule of writing 2": "CREATE TABLE theirs (x UNIQUE ON CONFLICT REPLACE)",
    "rule of writing 3": "CREATE TABLE theirs (x DEFAULT (hex(zeroblob(100000000))))",
    "computed index": "CREATE INDEX theirs ON {0} (hex(zeroblob(length(typeof(1)))))",
    "computed index 2": "CREATE INDEX theirs ON {0} (typeof(1)) WHERE 'a' LIKE '%a%a%a%a%'",
}
ROW = {"stage": "eval", "iteration": 1, "group_id": 0, "root": 0, "path": "", "seed": 0, "prompt": "a cat"}
ROW |= {"metadata": "{}", "picture": "samples/eval-000001/0-0.webp", "exact": 1, "representative": 1}


def made(folder, *rows, more=""):
    """A run's index of these rows, each given by what differs from `ROW`."""
    with sqlite3.connect(folder / INDEX) as database:
        database.executescript(f"{SCHEMA}; {more}; PRAGMA user_version = {SCHEMA_VERSION}")
        for number, row in enumerate(rows):
            row = ROW | {"root": number} | row
            marks = ", ".join("?" * len(row))
            database.execute(f"INSERT INTO samples ({', '.join(row)}) VALUES ({marks})", list(row.values()))
    database.close()


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_with_more_than_plain_tables_is_refused_before_it_is_read_or_written(tmp_path, kind):
    made(tmp_path, more=FOREIGN[kind].format("samples"))
    refused = f"holds the {kind.rstrip(' 23')} '.*', where only plain tables are read"
    for readonly in (True, False):
        with pytest.raises(DiffrlError, match=refused):
            connect(tmp_path, readonly).close()
    with pytest.raises(RewardError, match=refused):
        samples_of_run(tmp_path, None, (), Counter())
    with sqlite3.connect(tmp_path / "scores") as database:
        database.executescript(f"{CACHE_SCHEMA}; {FOREIGN[kind].format('scores')}; PRAGMA user_version = 2")
    with pytest.raises(RewardError, match=refused):
        ScoreCache(tmp_path / "scores")


def make_endless(index, fan_out=60, depth=3):
    """Let the samples' tree of pages lead down to its one leaf along fan_out ** depth ways."""
    with sqlite3.connect(index) as database:
        (size,), (root,) = (
            database.execute(question).fetchone()
            for question in ("PRAGMA page_size", "SELECT rootpage FROM sqlite_master WHERE name = 'samples'")
        )
    database.close()
    data = index.read_bytes()
    pages = [data[start : start + size] for start in range(0, len(data), size)]
    pages.append(pages[root - 1])
    for level in range(depth):
        child, cells = len(pages), range(fan_out)
        starts = [size - 5 * (cell + 1) for cell in cells]
        head = struct.pack(">BHHHBI", 5, 0, fan_out, starts[-1], 0, child) + struct.pack(f">{fan_out}H", *starts)
        body = struct.pack(">IB", child, 1) * fan_out
        page = head + bytes(size - len(head) - len(body)) + body
        if level == depth - 1:
            pages[root - 1] = page
        else:
            pages.append(page)
    pages[0] = pages[0][:28] + struct.pack(">I", len(pages)) + pages[0][32:]
    index.write_bytes(b"".join(pages))


def test_a_question_that_would_not_end_is_ended(tmp_path, monkeypatch):
    made(tmp_path, {})
    make_endless(tmp_path / INDEX)
    monkeypatch.setattr(stores, "MOST_STEPS", 1_000_000)
    ended = "cannot be used: a question took more than 1,000,000 steps"
    with SampleStore.open_readonly(tmp_path) as store, pytest.raises(DiffrlError, match=ended):
        store.read()
    with pytest.raises(RewardError, match=ended):
        samples_of_run(tmp_path, None, (), Counter())
    with SampleStore(tmp_path) as store, pytest.raises(DiffrlError, match=ended):
        store.lost_pictures(2)  # as a run asks that is resumed


def test_a_transaction_that_fails_as_it_is_committed_leaves_none_open(tmp_path):
    with closing(stores.open_to_write(tmp_path / "a")) as database:
        database.execute("CREATE TABLE one (x INTEGER PRIMARY KEY)")
        database.execute("CREATE TABLE other (x REFERENCES one (x) DEFERRABLE INITIALLY DEFERRED)")
        with pytest.raises(sqlite3.IntegrityError), stores.transaction(database):
            database.execute("INSERT INTO other VALUES (1)")
        with stores.transaction(database):
            assert database.execute("SELECT count(*) FROM other").fetchone() == (0,)


def test_each_question_has_the_whole_limit(tmp_path, monkeypatch):
    made(tmp_path, *[{}] * 200)
    monkeypatch.setattr(stores, "MOST_STEPS", 5 * stores.STEPS_AT_ONCE)
    with SampleStore.open_readonly(tmp_path) as store:
        assert all(len(store.read()) == 200 for _ in range(20))


DAMAGED = {
    "picture": (b"\xff", "samples/\0.webp"),
    "metadata": ("no json", "[1]", 3, b"\xff", "[" * 9999),
    "prompt": (b"\xff",),
    "stage": (b"eval",),
    "path": (b"\xff",),
    "iteration": ("one", b"1", 1.5),
    "exact": ("yes",),
}


@pytest.mark.parametrize("column", DAMAGED)
def test_a_damaged_row_is_that_rows_failure(tmp_path, column):
    rows = [{column: value} for value in DAMAGED[column]]
    made(tmp_path, {}, *rows)
    skipped = Counter()
    assert [item.sample["root"] for item in samples_of_run(tmp_path, None, (), skipped)] == [0]
    assert sum(skipped.values()) == len(rows)
    source = RunSource("run", tmp_path)
    states = source.states()
    assert State("eval", 1, len(rows) + 1 if column not in ("stage", "iteration") else 1) in states
    assert all(type(state.iteration) is int for state in states)
    for state in states:
        for sample in source.samples(state, [brief.id for brief in source.briefs(state, "total")]):
            assert isinstance(sample.file, str | None) and isinstance(sample.metadata, dict)
    with SampleStore.open_readonly(tmp_path) as store:
        assert store.lost_pictures(2)
        if column in ("metadata", "path"):
            with pytest.raises(DiffrlError, match="samples.sqlite holds a damaged row"):
                store.read()


@pytest.mark.parametrize("column", ["prompt", "metadata", "picture"])
def test_a_huge_value_is_refused_in_a_sentence(tmp_path, monkeypatch, column):
    monkeypatch.setattr(stores, "LONGEST_VALUE", 10_000)
    made(tmp_path, {column: "x" * 20_000})
    with pytest.raises(DiffrlError, match="samples.sqlite cannot be used: .*too big"):
        RunSource("run", tmp_path).samples(State("eval", 1), [1])
    with pytest.raises(RewardError, match="samples.sqlite cannot be used: .*too big"):
        samples_of_run(tmp_path, None, (), Counter())


def test_a_huge_row_of_the_cache_is_refused_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "LONGEST_VALUE", 10_000)
    ScoreCache(tmp_path / "scores").close()
    with sqlite3.connect(tmp_path / "scores") as database:
        database.execute("INSERT INTO scores VALUES ('key', 'x 1', 0.5, ?, NULL)", ("x" * 20_000,))
    with ScoreCache(tmp_path / "scores") as cache, pytest.raises(RewardError, match="cannot be used: .*too big"):
        cache.get("key")
