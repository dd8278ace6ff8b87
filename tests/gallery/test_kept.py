"""What takes long is made once, one at a time, and few wait for it."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from diffrl.gallery.kept import Kept
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


def test_who_asks_for_what_is_being_made_waits_for_it_and_others_go_on():
    kept, gate, made = Kept(100, len), threading.Event(), []

    def get(key, wait):
        def make():
            made.append(key)
            assert not wait or gate.wait(LONG)
            return key * 3

        return kept.get(key, make)

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(get, "a", True)
        until(lambda: made)
        second = pool.submit(get, "a", True)
        assert pool.submit(get, "b", False).result(LONG) == "bbb", "another key does not wait"
        gate.set()
        assert first.result(LONG) == second.result(LONG) == "aaa"
    assert get("a", True) == "aaa" and made == ["a", "b"]


def test_what_fails_is_not_kept_and_the_oldest_goes_first():
    kept = Kept(5, len)
    with pytest.raises(ValueError):
        kept.get("a", lambda: int("x"))
    assert [kept.get(key, lambda key=key: key * 2) for key in "abc"] == ["aa", "bb", "cc"]
    assert kept.get("a", lambda: "new") == "new", "two of five weigh four: the first went"
    assert kept.get("c", lambda: "new") == "cc"
