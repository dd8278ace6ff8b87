"""The table of runs: against scipy on the tables of the stores, and the same whatever order runs are named in."""

from __future__ import annotations

import csv
import fcntl
import html
import io
import itertools
import json
import os
import random
import re
from collections import defaultdict
from statistics import fmean

import pytest
from scipy import stats

from diffrl.gallery.progress import is_locked
from diffrl.tracking.store import SampleStore
from tests.gallery.made import CONFIG, eval_sample, make_run, write_metrics
from tests.gallery.test_compare import stored
from tests.patience import until

ARMS = {"slow": (1e-4, 0.30), "fast": (3e-4, 0.42), "wild": (1e-2, 0.25)}
"""Learning rate, and the level of the held-out scores."""


def rows_of(page: str) -> dict[str, str]:
    """The rows of the table as HTML, by what the first cell links to or says."""
    table = re.search(r'<table class="small run-table".*?</table>', page, re.S)[0]
    rows = re.findall(r"<tr class=\"\w*\">(.*?)</tr>", table, re.S)
    return {words(re.search(r"<th.*?</th>", row, re.S)[0]): row for row in rows}


def words(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def cells_of(page: str) -> dict[str, list[str]]:
    """The texts of each row's cells after its name: state, mean, from first, best, from baseline, ..."""
    return {
        name: [words(cell) for cell in re.findall(r"<td.*?</td>", row, re.S)] for name, row in rows_of(page).items()
    }


def train(run, arm, seed, scores=None):
    """Write a run of a recipe and a seed, whose last evaluation has 8 prompts with three samples each."""
    rate, level = ARMS[arm]
    draw, easy = random.Random(f"{arm}{seed}"), random.Random(1)
    make_run(run)
    config = CONFIG.replace("seed: 0", f"seed: {seed}") + f"train: {{learning_rate: {rate}}}\n"
    (run / "config.yaml").write_text(config, encoding="utf-8")
    with SampleStore(run) as store:
        store.truncate_after(-1, ["eval"])
        for iteration in (0, 4):
            of = [(n, root, easy.random()) for n in range(8) for root in range(3)]
            store.write(
                [
                    eval_sample(iteration, n, root, f"p {n}", level + 0.2 * bonus + 0.2 * draw.random())
                    for n, root, bonus in of
                ]
            )
    for name in ("config.yaml", "environment.json", "log.txt", "samples.sqlite"):
        if (run / name).exists():
            os.utime(run / name, (1e9 + next(CLOCK),) * 2)
    return run


CLOCK = itertools.count()


@pytest.fixture
def runs(tmp_path):
    """Three seeds of two arms, one of a third, in the order in which they began."""
    return [train(tmp_path / arm / f"seed-{seed}", arm, seed) for arm, seed in
            (*itertools.product(("slow", "fast"), range(3)), ("wild", 1))]  # fmt: skip


def by_prompt(run, other, reward="shapes"):
    """Mean difference of each prompt, from the stores."""
    mine, base = stored(run, 4, reward), stored(other, 4, reward)
    changes = defaultdict(list)
    for key, value in mine.items():
        changes[key[1]].append(value - base[key])
    return [fmean(of_prompt) for of_prompt in changes.values()]


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("±", ""))


def test_arms_and_seeds_against_scipy(runs, client_of):
    page = client_of(*runs).get("/?reward=shapes").text
    cells = cells_of(page)
    names = [name for name in cells if "seeds" in name]
    assert names == ["▾ seeds of fast fast 3 seeds", "▾ seeds of slow slow 3 seeds"] and "wild/seed-1" in cells
    assert cells["▾ seeds of slow slow 3 seeds"][4] == "baseline"
    each = [by_prompt(runs[3 + seed], runs[seed]) for seed in range(3)]
    for seed, changes in enumerate(each):  # of a seed the interval is over prompts
        low, high = stats.ttest_1samp(changes, 0).confidence_interval(0.95)
        shown = [number(one) for one in cells[f"fast/seed-{seed} seed {seed}"][4].replace(" to ", " ").split()]
        assert shown == pytest.approx([fmean(changes), low, high], abs=0.0006)
    means = [fmean(changes) for changes in each]  # of an arm over seeds
    low, high = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    shown = [number(one) for one in cells["▾ seeds of fast fast 3 seeds"][4].replace(" to ", " ").split()]
    assert shown == pytest.approx([fmean(means), low, high], abs=0.0006)
    alone = fmean(by_prompt(runs[6], runs[1]))  # against the same seed of the baseline
    assert number(cells["wild/seed-1"][4].split()[0]) == pytest.approx(alone, abs=0.0006)
    assert "over 3 seeds" in page and "over prompts" in page
    assert [cell for cell in cells["wild/seed-1"] if cell == "0.01"], "the only setting in which they differ"


def test_the_same_numbers_whatever_order_runs_are_named_in(runs, client_of):
    orders = [runs, runs[::-1], [*runs[3:], *runs[:3]]]
    table, *others = [rows_of(client_of(*order).get("/").text) for order in orders]
    tables = [re.sub(r"-\d(?=[@\"&])", "", str(rows)) for rows in (table, *others)]  # keys are numbered
    assert tables[0] == tables[1] == tables[2]
    pages = [client_of(*order).get("/compare").text.partition("<form")[0].partition("<main")[2] for order in orders]
    assert pages[0] == pages[1] == pages[2]


def test_the_baseline_of_the_address_holds_for_all(runs, client_of):
    client = client_of(*runs)
    wild = re.search(r'/\?baseline=([\w-]+)">as baseline', rows_of(client.get("/").text)["wild/seed-1"])[1]
    page = client.get(f"/?baseline={wild}&reward=shapes").text
    cells = cells_of(page)
    assert cells["wild/seed-1"][4] == "baseline"
    assert number(cells["▾ seeds of fast fast 3 seeds"][4].split()[0]) == pytest.approx(
        fmean(by_prompt(runs[4], runs[6])), abs=0.0006
    ), "of the one seed that both have"
    assert cells["fast/seed-0 seed 0"][4] == "–" and "no training seed in common" in page
    assert client.get("/?baseline=nobody").status_code == 200


def test_a_seed_that_is_there_twice_is_no_seed_of_its_arm(tmp_path, client_of):
    first, second = (train(tmp_path / name, "slow", 0) for name in ("first", "second"))
    cells = cells_of(client_of(first, second).get("/").text)
    assert list(cells) == ["second", "first"] and number(cells["second"][4].split()[0]) == 0


def test_ticked_runs_are_compared_with_the_baseline(runs, client_of):
    client = client_of(*runs)
    page = client.get("/").text
    (pinned,) = re.findall(r'<input type="hidden" name="against" value="([^"]*)"', page)
    keys = re.findall(r'name="run" value="([^"]*)"', page)
    assert len(keys) == 7
    text = client.get(f"/compare?run={keys[0]}&run={pinned.partition('@')[0]}&against={pinned}").text
    baseline = re.search(r'<tr class="baseline"><th scope="row">(.*?)</th>', text, re.S)[1]
    assert words(baseline) == "slow/seed-0 · evaluation 4"
    assert client.get(f"/curves?run={keys[0]}&run={keys[1]}").status_code == 200
    assert client.get(f"/vote?run={keys[0]}&run={keys[1]}", follow_redirects=False).status_code in (303, 400)
    assert client.get("/compare?run=nobody&run=seed-0").status_code == 404


def test_the_csv_has_every_run_and_setting(runs, client_of):
    lines = list(csv.DictReader(io.StringIO(client_of(*runs).get("/runs.csv?reward=shapes").text)))
    assert [(line["arm"], line["seed"], line["train.learning_rate"]) for line in lines] == [
        *(("slow", str(seed), "0.0001") for seed in range(3)),
        *(("fast", str(seed), "0.0003") for seed in range(3)),
        ("wild/seed-1", "1", "0.01"),
    ]
    assert [float(line["difference"]) for line in lines[3:6]] == pytest.approx(
        [fmean(by_prompt(runs[3 + seed], runs[seed])) for seed in range(3)]
    )
    assert lines[0]["difference"] == "" and float(lines[0]["evaluations"]) > 0


def test_a_run_that_was_killed_runs_no_more_though_no_file_changed(tmp_path, client_of):
    whole, killed = make_run(tmp_path / "whole"), make_run(tmp_path / "killed", iterations=2, finished=False)
    for path in killed.rglob("*"):
        os.utime(path, (1e9, 1e9))
    client, lock = client_of(whole, killed), killed / ".lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not is_locked(lock):
            pytest.skip("needs /proc/locks")
        assert cells_of(client.get("/").text)["killed"][0].startswith("running")
    assert cells_of(client.get("/").text)["killed"][0].startswith("stopped")
    write_metrics(killed, 3)
    assert "3 of 4 iterations" in cells_of(client.get("/").text)["killed"][0], "what it wrote since is read"


def test_what_the_sentinel_found_stands_in_the_row(runs, client_of):
    rows = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    rows[-1] |= {"sentinel/alarms": 1, "sentinel/hacked": 1}
    (runs[0] / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (runs[0] / "log.txt").write_text("Hacked <b>it</b>. (guards.reward_hacking)\n")
    page = client_of(*runs).get("/").text
    cells = cells_of(page)
    assert "hacked" in cells["slow/seed-0 seed 0"][0] and "1 alarm" in cells["slow/seed-0 seed 0"][0]
    assert "1 hacked" in cells["▾ seeds of slow slow 3 seeds"][0] and "Hacked &lt;b&gt;" in page


def test_what_a_comparison_found_stands_below(runs, client_of):
    pair = {"first": "slow", "second": "fast", "p_holm": 0.01, "finding": "higher <i>"}
    difference = {"n": 3, "mean": 0.125, "sd": 0.1, "low": 0.1, "high": 0.15, "p": 0.01}
    results = {"pairs": [{**pair, "difference": difference}], "power": "Power: with 3 seeds, <1."}
    folder = runs[0].parent.parent
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "figure.png").write_bytes(b"\x89PNG")
    page = client_of(*runs).get("/").text
    assert f"Comparison {folder.name}" in page and "Power: with 3 seeds, &lt;1." in page
    assert (
        "fast less slow 3 +0.125 +0.100 to +0.150 higher <i>" in words(page)
        and "data:image/png;base64,iVBORw==" in page
    )
    for broken in ("{", "[]", '{"pairs": [{"first": 1}]}', '{"pairs": 3}'):
        (folder / "results.json").write_text(broken)
        answer = client_of(*runs).get("/")
        assert answer.status_code == 200 and "Comparison" not in answer.text


@pytest.mark.browser
@pytest.mark.long
def test_order_search_and_ticks(runs, page, served):
    page.goto(served(*runs))
    bodies = "[...document.querySelectorAll('#runs tbody')].filter(one => !one.hidden)"
    shown = f"{bodies}.map(one => one.rows[0].cells[0].innerText.trim())"
    assert page.locator("#runs .seed:visible").count() == 0
    page.get_by_role("button", name="seeds of fast").click()
    assert page.locator("#runs .seed:visible").count() == 3
    page.get_by_role("button", name="from baseline").click()
    first = page.evaluate(shown)
    assert "fast" in first[0] and len(first) == 3 and "sort=-from+baseline" in page.url
    page.reload()
    assert [one.lstrip("▾▸ ") for one in page.evaluate(shown)] == [one.lstrip("▾▸ ") for one in first]
    page.get_by_role("button", name="from baseline").click()
    assert page.locator("th[aria-sort=ascending]").count() == 1
    page.locator("#search").fill("0.01")
    assert page.evaluate(shown) == ["wild/seed-1"] and "search=0.01" in page.url
    page.locator("#search").fill("")
    page.get_by_role("checkbox", name="fast", exact=True).check()
    assert page.locator("#ticked").inner_text() == "3 ticked"
    page.get_by_role("button", name="Curves").click()
    until(lambda: page.url.count("run=") == 3 and "/curves" in page.url)


def test_a_damaged_run_or_comparison_costs_no_page(runs, client_of, tmp_path):
    """A log that is a link out, a seed that is a list, an alarm that is a text; results that are no numbers."""
    (runs[6] / "samples.sqlite").write_bytes(b"no database at all, but long enough to look like one" * 40)
    (runs[5] / "metrics.jsonl").unlink()
    (runs[4] / "config.yaml").write_text("{")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_text("Stopped by a secret. (guards.kl)\n")
    (runs[0] / "log.txt").symlink_to(outside)
    (runs[1] / "config.yaml").write_text((runs[1] / "config.yaml").read_text().replace("seed: 1", "seed: [1]"))
    rows = [json.loads(line) for line in (runs[2] / "metrics.jsonl").read_text().splitlines()]
    rows[-1] |= {"sentinel/alarms": "x", "sentinel/hacked": [1], "cost/evaluations": "many"}
    (runs[2] / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pair = {"first": 1, "second": None, "finding": {}, "difference": {"n": "x", "mean": [], "low": 1e999, "high": 2}}
    (runs[0].parent.parent / "results.json").write_text(json.dumps({"pairs": [pair]}))
    (tmp_path / "figure.png").symlink_to(outside)
    client = client_of(*runs)
    page = client.get("/")
    assert page.status_code == 200 and "Comparison" not in page.text, "its figure is a link"
    rows = {name: words(row) for name, row in rows_of(page.text).items()}
    assert [name for name, row in rows.items() if "cannot be used" in row] == ["wild/seed-1"]
    assert "fast/seed-1" in rows, "what cannot be read is no seed of an arm"
    assert "secret" not in words(page.text) and "is a link out of it" in words(rows_of(page.text)["slow/seed-0 seed 0"])
    (tmp_path / "figure.png").unlink()
    (tmp_path / "figure.png").write_text("no image")
    page = client.get("/").text
    assert "Comparison" in page and "data:image" not in page
    for path in (
        "/runs.csv",
        "/compare",
        *(f"/run?run={key}" for key in re.findall(r'name="run" value="([^"]*)"', page)),
    ):
        assert client.get(path).status_code in (200, 503), path
