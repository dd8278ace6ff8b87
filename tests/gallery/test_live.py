"""Live updates: what the server tells, and that readers leave a run at work, and its files, alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from diffrl.gallery import progress
from diffrl.gallery.progress import POINTS, is_among, read_rows
from diffrl.gallery.runs import RunSource
from diffrl.tracking.endings import STOPPED
from diffrl.tracking.store import SampleStore
from tests.gallery.made import PROMPTS, eval_sample, make_run, metrics_rows
from tests.patience import LONG, until

pytestmark = pytest.mark.long

WRITER = """
import sys
from pathlib import Path
from diffrl.tracking.store import SampleStore, StoredSample
for opened in range(3):
    sys.stdin.readline()  # until the readers are at work
    with SampleStore(Path(sys.argv[1])) as store:
        for iteration in range(opened * 4, opened * 4 + 4):
            store.write([
                StoredSample(stage="train", iteration=iteration, group=g, root=0, seed=0, prompt="p" * 500, total=0.5,
                    rewards={"shapes": 0.5}) for g in range(40)
            ])
        store.sync()
        sys.stdin.readline()  # until they have read
print("wrote", 3 * 4 * 40)
"""


def wal_files(run):
    return sorted(path.name for path in run.glob("samples.sqlite-*"))


def test_state_tells_how_far_each_run_is(client_of, tmp_path):
    make_run(tmp_path / "runs" / "old")
    run = make_run(tmp_path / "runs" / "new", iterations=2, finished=False)
    client = client_of(tmp_path / "runs")
    told = client.get("/state").json()
    assert set(told) == {"old", "new"}
    assert (told["old"]["done"], told["old"]["total"], told["old"]["evaluation"]) == (4, 4, 4)
    assert (told["new"]["done"], told["new"]["total"], told["new"]["evaluation"]) == (2, 4, 2)
    assert told["new"]["running"] is True and told["old"]["running"] is False
    assert 0 <= told["new"]["age"] < 600
    long_ago = time.time() - 10_000
    for path in run.rglob("*"):
        os.utime(path, (long_ago, long_ago))
    told = client.get("/state?run=new").json()
    assert list(told) == ["new"] and told["new"]["running"] is False and told["new"]["age"] > 9_000


def test_whether_a_run_goes_on_is_said_alike_everywhere(client_of, tmp_path, monkeypatch):
    """Its state changes by the time that passes, and by its log, without any other file."""
    run = make_run(tmp_path / "runs" / "made", finished=False)
    client = client_of(run)

    def told():
        chip = re.search(r'class="chip [^"]*">([a-z ]+)</span>', client.get("/run?run=made").text)
        return client.get("/state").json()["made"]["running"], chip[1]

    version = client.get("/state").json()["made"]["version"]
    monkeypatch.setattr(progress, "FRESH", 10**6)
    assert told() == (True, "running")
    monkeypatch.setattr(progress, "FRESH", 0)
    assert told() == (False, "stopped") and client.get("/state").json()["made"]["version"] == version
    monkeypatch.setattr(progress, "FRESH", 10**6)
    (run / "log.txt").write_text(f"{STOPPED} the reward fell\n")
    assert told() == (False, "stopped by a guard")
    (run / "log.txt").unlink()
    (run / "summary.json").write_text("{}")
    assert told() == (False, "finished")


def test_a_run_of_another_clock_runs_while_it_is_seen_to_change(client_of, tmp_path, monkeypatch):
    """On a shared disk its lock may not be seen, and its files carry the time of the machine that writes them."""
    run = make_run(tmp_path / "runs" / "made", iterations=2, finished=False)
    client, clock = client_of(run), [100.0]
    monkeypatch.setattr("diffrl.gallery.progress.time.monotonic", lambda: clock[0])
    ahead = time.time() + 7200

    def running(later):
        clock[0] += later
        return client.get("/state").json()["made"]["running"]

    for path in run.rglob("*"):
        os.utime(path, (ahead, ahead))
    assert not running(1)
    os.utime(run / "metrics.jsonl", (ahead + 5, ahead + 5))
    assert running(1) and running(progress.FRESH - 10) and not running(20)
    os.utime(run / "metrics.jsonl", (10**11, 10**11))
    assert running(1) and client.get("/run?run=made").status_code == 200


def test_version_changes_with_every_kind_of_news_and_only_then(client_of, tmp_path):
    run = make_run(tmp_path / "runs" / "made", iterations=2, finished=False)
    client = client_of(run)

    def version():
        return client.get("/state").json()["made"]["version"]

    def append_row():
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(metrics_rows(3)[3]) + "\n")

    seen = [version()]
    for _ in range(3):
        for page in ("state", "samples?run=made"):
            client.get(f"/{page}")
        assert version() == seen[0]  # looking is no news
    store = SampleStore(run)
    news = [
        append_row,
        lambda: store.write([eval_sample(3, 0, 0, PROMPTS[0], 0.5)]),
        store.close,
        lambda: (run / "summary.json").write_text("{}"),
        lambda: (run / "trees" / "000000-0").mkdir(parents=True),
    ]
    for happens in news:
        time.sleep(0.02)
        happens()
        seen.append(version())
    assert len(set(seen)) == len(seen)


def test_state_of_a_run_that_cannot_be_read_is_still_told(client_of, tmp_path):
    run = make_run(tmp_path / "runs" / "made")
    (run / "metrics.jsonl").write_bytes(b'{"iteration": 1}\n{"iterat')
    (run / "config.yaml").write_bytes(b"\xff\xfe: [")
    (run / "samples.sqlite").write_bytes(b"")
    told = client_of(run).get("/state").json()["made"]
    assert told["done"] == 1 and told["total"] is None and told["evaluation"] is None


def test_a_lock_of_the_same_number_on_another_disk_is_not_the_runs():
    locks = "1: FLOCK  ADVISORY  WRITE 812 fe:01:77 0 EOF\n2: POSIX  ADVISORY  READ 9 fe:01:5 0 EOF\n3: -> FLOCK\n"
    assert is_among(locks, os.makedev(0xFE, 1), 77)
    assert not is_among(locks, os.makedev(0xFE, 2), 77) and not is_among(locks, os.makedev(0xFD, 1), 77)
    assert not is_among(locks, os.makedev(0xFE, 1), 7) and not is_among(locks, os.makedev(0xFE, 1), 5)
    assert is_among(locks, os.makedev(0, 40), 77)  # a disk that goes by another name there


@pytest.mark.parametrize("rows", [1, 2, 199, 200, 201, 399, 400, 401, 1002])
def test_no_more_rows_are_read_than_a_small_curve_shows(tmp_path, rows):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"iteration": n, "reward/mean": 0.5}) + "\n" for n in range(rows)))
    _, training, done, _ = read_rows(path)
    assert min(rows, POINTS // 2) <= len(training) <= POINTS
    assert (training[0][0], training[-1][0], done) == (0, rows - 1, rows - 1)


def test_readers_leave_no_files_behind(made):
    source = RunSource("made", made)
    assert wal_files(made) == []
    before = (made / "samples.sqlite").stat().st_mtime_ns
    with source.database() as database:
        assert wal_files(made)  # they are there while a question is asked
        source.states()
        with pytest.raises(Exception, match="readonly"):
            database.execute("DELETE FROM samples")
    assert wal_files(made) == []
    assert (made / "samples.sqlite").stat().st_mtime_ns == before


def test_readers_fold_in_what_a_killed_run_left(made):
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path;"
        "from tests.gallery.made import add_evaluation, eval_sample; from diffrl.tracking.store import SampleStore;"
        "s = SampleStore(Path(sys.argv[1])); s.write([eval_sample(9, 0, 0, 'p', 0.5)]); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(made), os.getcwd()], check=False)
    assert (made / "samples.sqlite-wal").stat().st_size > 0
    assert RunSource("made", made).states()[2].key == "eval-4"
    assert RunSource("made", made).states()[3].key == "eval-9"
    assert wal_files(made) == []


def test_a_run_at_work_and_its_readers_do_not_lock_each_other(client_of, tmp_path):
    run = make_run(tmp_path / "runs" / "made", finished=False)
    client = client_of(run)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(run)], text=True, **pipes)
    statuses: list[int] = []

    def read():
        source = RunSource("made", run)
        while writer.poll() is None:
            for state in source.states():
                source.briefs(state, "total")
            statuses.append(client.get("/state").status_code)
            time.sleep(0.01)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for seen in range(3, 21, 3):
            until(lambda seen=seen: len(statuses) >= seen or not any(reader.is_alive() for reader in readers))
            print(file=writer.stdin, flush=True)
        out, errors = writer.communicate(timeout=LONG)
    finally:
        writer.kill()
    for reader in readers:
        reader.join()
    assert (writer.returncode, errors, out) == (0, "", "wrote 480\n")
    assert len(statuses) >= 18 and set(statuses) == {200}
    assert sum(state.samples for state in RunSource("made", run).states()) > 480
    assert wal_files(run) == []  # nobody's snapshot kept the rows out of the index
