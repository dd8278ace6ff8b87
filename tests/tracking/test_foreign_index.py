"""An index of samples that somebody else made: only tables are read, or a query of theirs would run for ever."""

import sqlite3
from collections import Counter

import pytest

from diffrl.errors import DiffrlError
from diffrl.tracking.index import INDEX, SCHEMA, SCHEMA_VERSION, connect
from reward_models import RewardError
from reward_models.scoring.runs import samples_of_run

ENDLESS = "WITH RECURSIVE again(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM again) SELECT * FROM again"
FOREIGN = {
    "view": f"ALTER TABLE samples RENAME TO theirs; CREATE VIEW samples AS SELECT *, 1 AS x FROM ({ENDLESS}), theirs",
    "trigger": "CREATE TRIGGER theirs AFTER INSERT ON samples BEGIN DELETE FROM rewards; END",
    "table": "CREATE VIRTUAL TABLE theirs USING fts5(words)",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_an_index_with_more_than_tables_is_refused_before_it_is_read(tmp_path, kind):
    with sqlite3.connect(tmp_path / INDEX) as database:
        database.executescript(f"{SCHEMA}; {FOREIGN[kind]}; PRAGMA user_version = {SCHEMA_VERSION}")
    with pytest.raises(DiffrlError, match=f"holds the {kind} '.*', and an index of samples holds tables alone"):
        connect(tmp_path, readonly=True).close()
    with pytest.raises(RewardError, match=f"holds the {kind} '.*', and an index of samples holds tables alone"):
        samples_of_run(tmp_path, None, (), Counter())
