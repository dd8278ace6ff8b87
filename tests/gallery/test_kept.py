"""What takes long is made once, one at a time, and few wait for it."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from diffrl.gallery.app import make_app
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.kept import RETRY_AFTER, Kept
from diffrl.gallery.pages import curves
from tests.gallery.made import keep_columns, make_run
from tests.patience import LONG, until


def test_a_table_is_made_once_for_what_the_runs_have_written(tmp_path, client_of, monkeypatch):
    for name in ("one", "two"):
        keep_columns(make_run(tmp_path / "runs" / name, iterations=2), "held_out/shapes", "update/loss")
    made, real = [], curves.csv_of
    monkeypatch.setattr(curves, "csv_of", lambda *arguments: made.append(1) or real(*arguments))
    client = client_of(tmp_path / "runs")
    first = client.get("/curves.csv?run=one")
    assert client.get("/curves.csv?run=one&whatever=1").content == first.content and len(made) == 1
    assert client.get("/curves.csv?run=one").headers["content-disposition"] == first.headers["content-disposition"]
    for query in ("run=two", "run=one&panel=loss", "run=one&run=two", "run=two&run=one"):
        for _ in range(2):
            assert client.get(f"/curves.csv?{query}").content != first.content
    assert len(made) == 5
    with (tmp_path / "runs" / "one" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"iteration": 3, "held_out/shapes": 0.9}) + "\n")
    assert client.get("/curves.csv?run=one").content != first.content and len(made) == 6


def test_one_is_made_at_a_time_and_those_that_wait_for_the_same_get_it():
    kept, gate, lock = Kept(100, len, makers=1, waiting=2), threading.Event(), threading.Lock()
    made, most = [], []

    def maker(key):
        def make():
            with lock:
                made.append(key)
            most.append(len(kept._making))
            assert gate.wait(LONG)
            return key * 3

        return lambda: kept.get(key, make)

    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(maker("a"))]
        until(lambda: made)
        found += [pool.submit(maker("a")), pool.submit(maker("b"))]
        until(lambda: kept._waiting == 2)
        with pytest.raises(GalleryError) as late:
            maker("c")()
        assert (late.value.status, late.value.retry_after) == (503, RETRY_AFTER)
        gate.set()
        assert [one.result(LONG) for one in found] == ["aaa", "aaa", "bbb"]
    assert maker("c")() == "ccc" and made == ["a", "b", "c"] and max(most) == 1


def test_who_comes_late_is_asked_to_come_again_and_other_pages_are_answered(tmp_path, site_of):
    site = site_of(keep_columns(make_run(tmp_path / "made", iterations=2), "update/loss"))
    client = TestClient(make_app(site), base_url="http://127.0.0.1")
    for kept in (site.tables, site.reports):
        kept.waiting = 0
        kept._making.add("another's")
    for path in ("/curves.csv", "/report?run=made"):
        answer = client.get(path)
        assert answer.status_code == 503 and answer.headers["retry-after"] == str(RETRY_AFTER)
        assert "in a moment" in answer.text
    assert client.get("/run?run=made").status_code == client.get("/curves").status_code == 200
