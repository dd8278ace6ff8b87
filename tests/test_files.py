"""Files are whole or not there, and a reader's connection to a database writes nothing."""

import os
import sqlite3
import stat
from types import SimpleNamespace

import pytest

from diffrl.errors import DiffrlError
from diffrl.files import discard, follow_umask, replacing, write_json, write_text
from reward_models.common.stores import open_to_read, open_to_write


@pytest.mark.parametrize("fails", ["writing", "renaming"])
def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, fails):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    if fails == "renaming":
        monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space"), replacing(path) as temporary:
        temporary.write_text("half of the n")
        if fails == "writing":
            refuse()
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_readers_see_the_old_file_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with replacing(path) as temporary:
        temporary.write_text("{")
        assert path.read_text() == '{\n  "a": 1\n}\n'
        temporary.write_text("{}")
    assert path.read_text() == "{}" and os.listdir(tmp_path) == ["a.json"]


def test_what_a_kill_left_is_replaced(tmp_path):
    (tmp_path / ".a.json.tmp").write_text("{")
    write_json(tmp_path / "a.json", {})
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_document_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(DiffrlError, match=r"Cannot write .*gone/a\.json: No such file or directory"):
        write_json(tmp_path / "gone" / "a.json", {})


def test_a_reader_writes_nothing_and_does_not_wait_for_the_writer(tmp_path):
    path = tmp_path / "a.sqlite"
    with pytest.raises(sqlite3.OperationalError):
        open_to_read(path)
    writer = open_to_write(path)
    writer.execute("CREATE TABLE t (x)")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO t VALUES (7)")
    reader = open_to_read(path)
    assert reader.execute("SELECT count(*) FROM t").fetchone() == (0,)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("INSERT INTO t VALUES (8)")
    writer.execute("COMMIT")
    assert reader.execute("SELECT x FROM t").fetchall() == [(7,)]
    writer.close()
    reader.close()
    assert os.listdir(tmp_path) == ["a.sqlite"]  # the last to close clears away what WAL readers share


def test_a_link_is_discarded_and_not_what_it_points_to(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    discard(tmp_path / "link")
    discard(tmp_path / "nothing")
    assert os.listdir(tmp_path) == ["kept"]
    discard(tmp_path / "kept")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o007, 0o660), (0o077, 0o600)])
def test_files_get_the_mode_of_new_ones(tmp_path, mask, mode):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    for file in (tmp_path / "x", inner / "y"):
        file.touch(mode=0o400)
    before = os.umask(mask)
    try:
        follow_umask(tmp_path)
        assert os.umask(mask) == mask  # threads write files meanwhile: it is never changed
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "x", inner / "y")} == {mode}
    assert sorted(os.listdir(tmp_path)) == ["a", "x"]


def test_ranks_that_write_into_one_folder_do_not_meet(tmp_path, monkeypatch):
    """Another rank asks for the mode of its own file while this one looks at the file that has it."""
    mine, other = tmp_path / "part-0", tmp_path / "part-1"
    for path in (mine, other):
        path.write_bytes(b"x")
    reads = []

    def read(mode):
        if not reads:
            reads.append(mode)
            follow_umask(other)
        return stat.S_IMODE(mode)

    monkeypatch.setattr("diffrl.files.stat", SimpleNamespace(S_IMODE=read))
    follow_umask(mine)
    assert {path.name for path in tmp_path.iterdir()} == {"part-0", "part-1"}
    assert mine.stat().st_mode == other.stat().st_mode
