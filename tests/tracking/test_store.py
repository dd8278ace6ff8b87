import multiprocessing
import random
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from diffrl.errors import DiffrlError
from diffrl.tracking.store import INDEX, SampleStore, StoredSample


def picture(seed=0, height=32, width=29):
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def sample(iteration=0, group=0, root=0, stage="train", **values):
    return StoredSample(stage, iteration, group, root, 17, values.pop("prompt", f"prompt {group}"), **values)


def files(run):
    return sorted(str(path.relative_to(run)) for path in (run / "samples").rglob("*") if path.is_file())


def test_a_sample_comes_back_as_it_was(tmp_path):
    stored = sample(
        iteration=40,
        group=3,
        root=1,
        path=(0, 12),
        prompt="a <b>größe</b> 日本",
        metadata={"objects": ["x"], "n": 2},
        total=1 / 3,
        advantage=-0.25,
        rewards={"shapes": 0.1, "shapes/strict": 0.0, "clip": float("nan")},
        error="clip: out of memory",
        picture=picture(),
    )
    with SampleStore(tmp_path) as store:
        store.write([stored, sample(iteration=50, total=float("nan"), advantage=float("inf"))])
        back, failed = store.read()
        assert (failed.total, failed.advantage) == (None, None)
        assert torch.equal(store.picture(back), picture())
    rewards = {"shapes": 0.1, "shapes/strict": 0.0, "clip": None}
    file = "samples/train-000040/3-1-0.12.webp"
    assert back == replace(stored, picture=None, file=file, rewards=rewards, exact=True, representative=True)
    assert files(tmp_path) == [back.file]


def test_the_same_key_replaces_its_rewards_and_its_picture(tmp_path):
    with SampleStore(tmp_path) as store:
        first = sample(rewards={"a": 1.0, "b": 2.0}, picture=picture(1))
        store.write([first, sample(root=1, rewards={"a": 5.0})])
        store.write([replace(first, rewards={"a": 3.0}, picture=picture(2))])
        back, other = store.read()
        assert back.rewards == {"a": 3.0} and other.rewards == {"a": 5.0}
        assert torch.equal(store.picture(back), picture(2))
        store.write([sample(prompt="new")])
        assert store.read()[0].prompt == "new" and store.read()[0].file is None
        assert files(tmp_path) == []
        assert len(store.read()) == 2


def test_filters(tmp_path):
    prompts = ["a Red circle", "100% blue", "100 blue_x"]
    with SampleStore(tmp_path) as store:
        for stage in ("train", "eval"):
            for iteration in (0, 10, 2):
                store.write([sample(iteration, g, stage=stage, prompt=p, total=1.0) for g, p in enumerate(prompts)])
        assert len(store.read()) == 18
        assert [s.iteration for s in store.read(stage="eval")] == [0, 0, 0, 2, 2, 2, 10, 10, 10]
        assert [s.group for s in store.read(stage="train", iteration=10)] == [0, 1, 2]


def test_truncate_removes_rows_files_and_orphans(tmp_path):
    with SampleStore(tmp_path) as store:
        for iteration in (9, 10, 11):
            for stage in ("train", "eval"):
                store.write([sample(iteration, stage=stage, rewards={"a": 1.0}, picture=picture())])
        orphan = tmp_path / "samples" / "train-000012"  # a kill after the pictures, before the rows
        orphan.mkdir()
        (orphan / ".0-0.webp.tmp").write_bytes(b"half")
        store.truncate_after(10, ["train"])
        assert [(s.stage, s.iteration) for s in store.read()] == [
            ("eval", 9), ("train", 9), ("eval", 10), ("train", 10), ("eval", 11),
        ]  # fmt: skip
        assert not orphan.exists()
        assert files(tmp_path) == sorted(s.file for s in store.read())
    with sqlite3.connect(tmp_path / INDEX) as database:
        assert database.execute("SELECT count(*) FROM rewards").fetchone() == (5,)


def test_a_write_that_fails_leaves_no_row(tmp_path):
    with SampleStore(tmp_path) as store:
        store.write([sample(rewards={"a": 1.0})])
        with pytest.raises(DiffrlError, match=INDEX):
            store.write([sample(root=1), replace(sample(root=2), prompt=None)])
        with pytest.raises(ValueError, match="lower-case"):
            store.write([sample(root=1), sample(stage="../x")])
        assert len(store.read()) == 1 and store.read()[0].rewards == {"a": 1.0}
        store.write([sample(root=1)])
        assert len(store.read()) == 2


def test_rows_and_their_rewards_are_of_one_moment(tmp_path):
    with SampleStore(tmp_path) as store, SampleStore.open_readonly(tmp_path) as reader:
        store.write([sample(total=1.0, rewards={"a": 1.0})])
        replaced = []

        def replace_between_the_queries(statement):
            if statement.startswith("SELECT sample_id"):
                replaced.append(store.write([sample(total=2.0, rewards={"a": 2.0})]))

        reader._database.set_trace_callback(replace_between_the_queries)
        (row,) = reader.read()
        assert replaced and row.total == row.rewards["a"] == 1.0
        reader._database.set_trace_callback(None)
        assert reader.read()[0].rewards == {"a": 2.0}


def test_an_open_read_never_blocks_the_writer(tmp_path):
    with SampleStore(tmp_path) as store:
        store.write([sample()])
        reader = sqlite3.connect(f"file:{tmp_path / INDEX}?mode=ro", uri=True, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM samples").fetchone()
        store.write([sample(1)])
        store.truncate_after(0, ["train"])
        store.sync()
        reader.close()


def test_readonly_refuses_to_write_and_to_create(tmp_path):
    with pytest.raises(DiffrlError, match="holds no samples"):
        SampleStore.open_readonly(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    SampleStore(tmp_path).close()
    with SampleStore.open_readonly(tmp_path) as reader:
        assert reader.read() == []
        with pytest.raises(DiffrlError, match="readonly"):
            reader.write([sample()])


def test_a_store_on_a_read_only_disk(tmp_path, monkeypatch):
    with SampleStore(tmp_path) as store:
        store.write([sample()])
    monkeypatch.setattr("diffrl.files.os.access", lambda path, mode: False)
    with SampleStore.open_readonly(tmp_path) as reader:
        assert len(reader.read()) == 1
        assert [path.name for path in tmp_path.iterdir()] == [INDEX]  # nothing had to be made beside it


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("content", [b"not a database at all" * 99, b"SQLite format 3\0" + b"\xff" * 5000, None])
def test_a_corrupt_index_or_a_link_to_itself_is_one_clear_message(tmp_path, readonly, content):
    index = tmp_path / INDEX
    index.symlink_to(INDEX) if content is None else index.write_bytes(content)
    with pytest.raises(DiffrlError, match=INDEX):
        SampleStore(tmp_path, readonly=readonly)
    assert index.is_symlink() if content is None else index.read_bytes() == content


def test_a_damaged_page_is_found_before_it_is_needed(tmp_path):
    with SampleStore(tmp_path) as store:
        store.write([sample(root=root) for root in range(200)])
        store.require_whole()
    data = bytearray((tmp_path / INDEX).read_bytes())
    data[-4096:] = b"\xff" * 4096
    (tmp_path / INDEX).write_bytes(data)
    with SampleStore.open_readonly(tmp_path) as reader, pytest.raises(DiffrlError, match=INDEX):
        reader.require_whole()


def test_another_schema_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / INDEX) as database:
        database.execute("CREATE TABLE other (x)")
    with pytest.raises(DiffrlError, match="schema 0"):
        SampleStore(tmp_path)
    SampleStore(tmp_path / "new").close()
    with sqlite3.connect(tmp_path / "new" / INDEX) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(DiffrlError, match="schema 99"):
        SampleStore.open_readonly(tmp_path / "new")


def test_missing_broken_and_foreign_pictures(tmp_path):
    with SampleStore(tmp_path / "run") as store:
        store.write([sample(picture=picture()), sample(root=1)])
        back, without = store.read()
        with pytest.raises(DiffrlError, match="without an image"):
            store.picture(without)
        (tmp_path / "run" / back.file).write_bytes(b"RIFF")
        with pytest.raises(DiffrlError, match=r"0-0\.webp"):
            store.picture(back)
        (tmp_path / "run" / back.file).unlink()
        with pytest.raises(DiffrlError, match=r"0-0\.webp"):
            store.picture(back)
        with pytest.raises(DiffrlError, match="outside its run"):
            store.picture(replace(back, file="samples/../../secret.png"))


def test_a_run_directory_with_odd_characters(tmp_path):
    run = tmp_path / "100% a?b#c d"
    with SampleStore(run) as store:
        store.write([sample()])
    with SampleStore.open_readonly(run) as reader:
        assert len(reader.read()) == 1
    assert (run / INDEX).is_file()


def write_some(run, rank):
    with SampleStore(run) as store:
        for iteration in range(30):
            store.write([sample(iteration, 10 * rank + g, rewards={"a": 1.0}) for g in range(5)])


def test_processes_may_fill_one_store_together(tmp_path):
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=write_some, args=(tmp_path, rank)) for rank in range(3)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0, 0]
    with SampleStore.open_readonly(tmp_path) as reader:
        assert len(reader.read()) == 450


def test_an_iteration_writes_as_many_pages_however_long_the_run_is(tmp_path):
    """Counted in the log of SQLite, which has a frame for each page that a transaction changed."""

    def pages(iteration):
        rng = random.Random(iteration)
        names = ("shapes", "shapes/strict", "shapes/colour", "shapes/count")
        store.write(
            [
                sample(iteration, g, r, prompt=f"{rng.random()} squares", rewards={n: rng.random() for n in names})
                for g in range(8)
                for r in range(8)
            ]
        )
        with closing(sqlite3.connect(tmp_path / INDEX)) as other:
            (_, frames, _) = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return frames

    with SampleStore(tmp_path) as store:
        written = [pages(i) for i in range(60)]
    assert sum(written[50:60]) <= 1.2 * sum(written[5:15])


def some_rewards(rng):
    """Rewards whose parts are often equal, by chance or because two scorers report the same."""
    values = (0.0, 1.0, 0.25, None)
    names = [f"{reward}{part}" for reward in "abc" for part in ("", "/colour", "/count", "/a/b")]
    return {name: rng.choice(values) for name in names if rng.random() < 0.7}


def test_equal_parts_of_several_rewards_are_one_row_and_come_back_under_each_name(tmp_path):
    rng = random.Random(3)
    with SampleStore(tmp_path) as store:
        for iteration in range(5):
            stored = [sample(iteration, root=root, rewards=some_rewards(rng)) for root in range(20)]
            store.write([replace(one, rewards={"gone": 1.0}) for one in stored])
            store.write(stored)
            assert [one.rewards for one in store.read(iteration=iteration)] == [one.rewards for one in stored]
        both = {f"{reward}/{part}": part / 8 for part in range(8) for reward in ("shapes", "shapes_strict")}
        store.write([sample(9, rewards=both)])
    with closing(sqlite3.connect(tmp_path / INDEX)) as database:
        last = "SELECT count(*) FROM rewards JOIN samples ON sample_id = id WHERE iteration = 9"
        assert database.execute(last).fetchone() == (8,)
