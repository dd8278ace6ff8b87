"""The start and the overview: before and after at once, and a sentence for everything that is not there."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sqlite3
import sys
import time

import pytest

from diffrl.gallery.progress import is_locked, progress, read_rows
from diffrl.gallery.runs import RunSource
from diffrl.tracking.store import SampleStore
from tests.gallery.made import add_evaluation, eval_sample, flat, make_run, metrics_rows, write_metrics
from tests.gallery.test_run_table import rows_of

OLD = time.time() - 7200


def aged(run):
    """A run that was last written to two hours ago."""
    for path in run.rglob("*"):
        os.utime(path, (OLD, OLD))
    return run


def test_the_overview_shows_numbers_and_pairs_at_once(tmp_path, client_of):
    run = make_run(tmp_path / "made", prompts=tuple(f"prompt {n:02d}" for n in range(17)), roots=1)
    text = client_of(run).get("/").text
    figures = re.findall(
        r"held-out (\w+)</span>.*?class=\"soft\">([\d.]+)</span> → <strong>([\d.]+)</strong> "
        r"<span class=\"chip (\w*)\"[^>]*>([^<]+)<",
        text,
    )
    assert figures == [
        ("shapes_strict", "0.200", "0.600", "", "+0.400"),
        ("shapes", "0.500", "0.700", "", "+0.200"),
    ]
    pairs = re.findall(r'<li class="item".*?</li>', text, re.S)
    assert [re.search(r"prompt \d+", pair)[0] for pair in pairs] == [f"prompt {n:02d}" for n in range(12)]
    for n, pair in enumerate(pairs):
        assert re.findall(r'src="/media/made/(\S+)\?size', pair) == [
            f"samples/eval-00000{i}/{n}-0.webp" for i in (0, 4)
        ]
    assert 'data-page="run"' in text and str(run) in text and "finished" in text and "4 of 4" in text
    assert "kept no trees" in text and "alarm" in text
    assert client_of(run).get("/run").text == client_of(run).get("/run?run=made").text == text


@pytest.mark.parametrize("lower", [False, True])
def test_the_overview_shows_what_got_worse_most_and_why(tmp_path, client_of, lower):
    """Not among the first pictures: of equal losses those with both pictures, the greatest first, with the reasons."""
    run = tmp_path / "worse"
    make_run(run)
    if lower:
        reward = {"higher_is_better": False}
        (run / "rewards.json").write_text(json.dumps({"held_out": {"shapes_strict": reward, "shapes": reward}}))
    sign = -1 if lower else 1
    twin = 29  # another sample of the prompt that lost most: the prompt is there once
    scores = {n: (0.9, 0.9 - sign * loss) for n, loss in enumerate((0.3, 0.0, 0.5, 0.1, 0.5, -0.4, 0.2, 0.6), 20)}
    scores[twin] = (0.9, 0.9 - sign * 0.55)
    with SampleStore(run) as store:
        store.truncate_after(-1, ["eval"])
        for iteration, which in ((0, 0), (4, 1)):
            store.write(
                [
                    eval_sample(
                        iteration,
                        group,
                        0,
                        f"prompt {27 if group == twin else group}",
                        pair[which],
                        None if group == 22 else flat(group / 9),
                        rewards={"shapes_strict": pair[which]},
                        notes={"shapes": f"why {group}-{iteration}"},
                    )
                    for group, pair in scores.items()
                ]
            )
    text = client_of(run).get("/").text
    rows = re.findall(r'<li class="item" id="row-worst-.*?</li>', text, re.S)
    assert [re.search(r"prompt \d+", row)[0] for row in rows] == [f"prompt {n}" for n in (27, 24, 22, 20, 26)]
    assert all(f"why {n}-4" in row and f"why {n}-0" in row for n, row in zip((27, 24, 22, 20, 26), rows, strict=True))
    assert "/media/" in rows[0] and "/media/" not in rows[2]
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    (address,) = re.findall(r'href="([^"]*show=worse[^"]*)"', text)
    found = client_of(run).get(address.replace("&amp;", "&")).text
    order = [27, 27, 24, 22, 20, 26, 23]  # of two that lost as much, the one whose pictures were kept
    assert [int(n) for n in re.findall(r'title="prompt (\d+)"', found)] == order


def test_alarms_of_guards_and_sentinel_stand_out(made, client_of):
    alarm = "The loss is nan. <b>Prompts</b>: 'x'. (guards.nonfinite_loss)"
    (made / "log.txt").write_text(f"Exploring in int8.\n{alarm}\n{alarm}\n", encoding="utf-8")
    text = client_of(made).get("/").text
    (line,) = re.findall(r'<p class="alarm"><strong>Alarm:</strong>(.*?)</p>', text)
    assert "&lt;b&gt;Prompts" in line and "(2 times)" in line
    assert "Exploring in int8." in text and "No guard and no sentinel" not in text


def test_trees_are_linked_by_iteration(made, client_of):
    for name in ("000000-0", "000000-3", "000002-1"):
        (made / "trees" / name).mkdir(parents=True)
        (made / "trees" / name / "tree.json").write_text("{}", encoding="utf-8")
    text = client_of(made).get("/").text
    links = re.findall(r'href="/tree\?run=made&amp;tree=([\d-]+)">([^<]*)<', text)
    assert links == [("000000-0", "iteration 0"), ("000002-1", "iteration 2")]


@pytest.mark.parametrize("state", ["no metrics", "no evaluation", "one evaluation", "no samples", "broken lines"])
def test_half_written_runs_say_what_is_missing(tmp_path, client_of, state):
    run = make_run(tmp_path / "half", iterations=2, finished=False)
    words = {
        "no metrics": "has written no metrics yet",
        "no evaluation": "no held-out evaluation in its metrics",
        "one evaluation": "only evaluation 0 so far",
        "no samples": "samples.sqlite is missing",
        "broken lines": "1 of the lines of metrics.jsonl is no row",
    }[state]
    if state == "no metrics":
        (run / "metrics.jsonl").unlink()
    elif state == "no evaluation":
        rows = [{k: v for k, v in row.items() if "held_out" not in k} for row in metrics_rows(2)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif state == "one evaluation":
        run = tmp_path / "one"
        write_metrics(run, 0)
        add_evaluation(run, 0)
    elif state == "no samples":
        (run / "samples.sqlite").unlink()
    else:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        text = "\n".join([lines[0], "{broken", *lines[1:], '{"iteration": 3, "rew'])  # and one that is being written
        (run / "metrics.jsonl").write_text(text, encoding="utf-8")
    answer = client_of(run).get("/")
    assert answer.status_code == 200 and words in answer.text
    assert ("/media/" in answer.text) == (state != "no samples")


def test_pairs_of_training_do_not_claim_the_same_noise(tmp_path, client_of):
    run = make_run(tmp_path / "made")
    assert "same prompts, same noise, the first 6 of those kept whatever they scored" in client_of(run).get("/").text
    with sqlite3.connect(run / "samples.sqlite") as database:
        database.execute("DELETE FROM samples WHERE stage = 'eval'")
    database.close()
    text = client_of(run).get("/").text
    assert "same prompts, other noise, the first 4 of those kept whatever they scored" in text
    assert "same noise" not in text
    assert "no held-out evaluation: what is shown comes from elsewhere" in text


def test_samples_kept_for_their_change_are_not_called_unselected(tmp_path, client_of):
    """Of eight prompts 0, 2, 4 and 6 keep their images whatever they score; 1 and 3 for what they lost and gained."""
    run = make_run(tmp_path / "made", prompts=[f"prompt {n}" for n in range(8)], roots=1)
    with SampleStore(run) as store:
        store.truncate_after(-1, ["eval"])
        for iteration in (0, 4):
            kept = [flat(n / 9) if iteration == 0 or n in (0, 1, 2, 3, 4, 6) else None for n in range(8)]
            stands = [iteration == 0 or n % 2 == 0 for n in range(8)]
            samples = [(f"prompt {n}", 0.5, image) for n, image in enumerate(kept)]
            store.write([eval_sample(iteration, n, 0, *one, representative=stands[n]) for n, one in enumerate(samples)])

    def shown():
        text = client_of(run).get("/").text
        pairs = re.findall(r'<li class="item" id="row-\d.*?</li>', text, re.S)
        return [int(re.search(r"prompt (\d)", pair)[1]) for pair in pairs], text

    found, text = shown()
    assert found == [0, 2, 4, 6] and "the first 4 of those kept whatever they scored" in text


def test_finished_stopped_and_running(tmp_path):
    done, left = make_run(tmp_path / "done"), aged(make_run(tmp_path / "left", iterations=2, finished=False))
    assert progress(RunSource("done", done)).state == "finished"
    (left / "samples.sqlite-wal").touch()  # as a reader leaves it
    stopped = progress(RunSource("left", left))
    assert (stopped.state, stopped.done, stopped.total) == ("stopped", 2, 4)
    lock = left / ".lock"
    with lock.open("w") as file:
        os.utime(lock, (OLD, OLD))
        assert not is_locked(lock)
        fcntl.flock(file, fcntl.LOCK_EX)
        if is_locked(lock):  # needs /proc/locks; elsewhere only the last write tells
            assert progress(RunSource("left", left)).state == "running"
        else:
            assert not sys.platform.startswith("linux")
    (left / "log.txt").write_text("x", encoding="utf-8")  # somebody writes, perhaps on another machine
    assert progress(RunSource("left", left)).state == "running"


def test_what_was_lost_of_a_run_is_told(tmp_path, client_of):
    make_run(tmp_path / "runs" / "whole")
    cut = make_run(tmp_path / "runs" / "cut")
    write_metrics(cut, 1)
    copy = make_run(tmp_path / "runs" / "copy", finished=False)
    (copy / "config.yaml").unlink()
    words = {
        "cut": "metrics.jsonl ends at iteration 1, but images go to evaluation 4: rows are missing.",
        "copy": "config.yaml and summary.json are not there: nothing tells whether this run has ended.",
    }
    client = client_of(tmp_path / "runs")
    cards = rows_of(client.get("/").text)
    for name, card in cards.items():
        page = client.get(f"/run?run={name}").text
        for other, sentence in words.items():
            assert (sentence in page) == (sentence in card) == (name == other), (name, other)
    assert len(cards) == 3
    assert "state unknown</span> 4 iterations" in cards["copy"] and "running" not in cards["copy"]
    assert '"running": false' in json.dumps(client.get("/state").json()["copy"])
    going = make_run(tmp_path / "going", finished=False)  # pictures of an evaluation come before its row
    write_metrics(going, 3)
    assert "rows are missing" not in client_of(going).get("/").text


def test_equal_parts_of_two_rewards_stand_in_one_line(made, client_of):
    held = {"held_out/a": (0.1, 0.2), "held_out/b": (0.1, 0.2), "held_out/a/colour": (0.3, 0.4)}
    held |= {"held_out/a/count": (0.5, 0.6), "held_out/b/colour": (0.3, 0.4), "held_out/b/count": (0.5, 0.7)}
    rows = [{"iteration": 4 * i, **{name: values[i] for name, values in held.items()}} for i in (0, 1)]
    (made / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = client_of(made).get("/").text.partition("All held-out numbers")[2].partition("</section>")[0]
    found = re.findall(r'<th scope="row">(.*?)</th><td class="number">(.*?)</td><td class="number">(.*?)</td>', text)
    assert found == [
        ("a", "0.100", "0.200"),
        ("b", "0.100", "0.200"),
        ("a/colour = b/colour", "0.300", "0.400"),
        ("a/count", "0.500", "0.600"),
        ("b/count", "0.500", "0.700"),
    ]


@pytest.mark.parametrize(("samples", "said"), [(500, True), (6, False), ("many", False), (None, False)])
def test_what_the_numbers_are_means_over_is_told_where_pictures_are_fewer(made, client_of, samples, said):
    (made / "config.yaml").write_text(f"run: {{iterations: 4}}\neval: {{samples: {json.dumps(samples)}}}\n")
    text = client_of(made).get("/").text
    assert ("Means over all 500 samples of an evaluation, 6 of which are kept." in text) is said
    assert ("Means" in text) is said


def test_long_metrics_are_thinned_but_keep_every_evaluation(tmp_path):
    rows = [
        {"iteration": n, "reward/mean": n / 7, **({"held_out/a": n / 3} if n % 7 == 0 else {})} for n in range(1002)
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    evaluations, training, done, broken = read_rows(path)
    assert [row["iteration"] for row in evaluations] == list(range(0, 1002, 7))
    assert evaluations[-1]["held_out/a"] == 1001 / 3
    assert done == 1001 and broken == 0 and 150 <= len(training) <= 250
    assert training[0] == (0, 0.0) and training[-1] == (1001, 1001 / 7)
