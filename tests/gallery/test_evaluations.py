"""A sample through the evaluations of its run: against the store, on the server and in an exported site."""

from __future__ import annotations

import html
import json
import re
import sqlite3

import pytest
import torch

from diffrl.gallery.export import export_site
from diffrl.gallery.site import BLOCK
from diffrl.gallery.sources import find_sources
from diffrl.tracking.store import SampleStore
from tests.gallery.made import PROMPTS, REWARDS, add_evaluation, eval_sample, flat, keep_columns, make_run


def table(run):
    """The oracle: by id its evaluation, what makes it the same sample, and its values."""
    with sqlite3.connect(run / "samples.sqlite") as database:
        samples = database.execute(
            "SELECT id, iteration, prompt, group_id, root, total FROM samples WHERE stage = 'eval'"
        ).fetchall()
        raw = database.execute(f"SELECT sample_id, name, raw FROM {REWARDS}").fetchall()
    found = {row[0]: {"iteration": row[1], "sample": row[2:5], "values": {"total": row[5]}} for row in samples}
    for number, name, value in raw:
        if number in found:
            found[number]["values"][name] = value
    return found


def asked(client, run="made", block=0, **more):
    words = "".join(f"&{name}={value}" for name, value in more.items())
    return client.get(f"/evaluations.json?run={run}&block={block}{words}")


def test_every_sample_has_its_scores_and_its_pictures_at_each_evaluation(made, client_of):
    client, oracle = client_of(made), table(made)
    answer = asked(client)
    assert answer.headers["content-type"] == "application/json"
    data = answer.json()
    assert data["keys"] == ["eval-0", "eval-2", "eval-4"] and data["labels"][1] == "evaluation 2" and data["of"] == 3
    names = [name for name, *_ in data["rewards"]]
    assert len(data["samples"]) == 6
    for sample in data["samples"]:
        own = [oracle[number] for number in sample["ids"]]
        assert [one["iteration"] for one in own] == [0, 2, 4] and len({one["sample"] for one in own}) == 1
        for one, told in zip(own, sample["at"], strict=True):
            assert dict(zip(names, told["values"], strict=True)) == one["values"]
            _, group, root = one["sample"]
            assert told["src"] == f"/media/made/samples/eval-{one['iteration']:06d}/{group}-{root}.webp"
            assert client.get(told["src"]).status_code == 200
    assert {number for sample in data["samples"] for number in sample["ids"]} == set(oracle)


def test_a_cell_leads_to_its_own_sample(made, client_of):
    client, oracle = client_of(made), table(made)
    cells = re.findall(
        r'<figure class="cell" data-sample="(\d+)" data-evaluations="([^"]+)"', client.get("/compare").text
    )
    assert len(cells) == 12
    for number, address in cells:
        data = client.get(html.unescape(address)).json()
        (sample,) = [one for one in data["samples"] if int(number) in one["ids"]]
        key = data["keys"][sample["ids"].index(int(number))]
        assert key == f"eval-{oracle[int(number)]['iteration']}"
    training = client.get("/compare?columns=made@train-1").text
    assert "<figure" in training and "data-evaluations" not in training, "its noise is drawn anew each time"


def test_prompts_come_in_blocks(tmp_path, client_of):
    prompts = [f"prompt {n}" for n in range(BLOCK + 3)]
    run = make_run(tmp_path / "long", iterations=2, prompts=prompts, roots=1)
    oracle, client = table(run), client_of(run)
    for block, groups in ((0, range(BLOCK)), (1, range(BLOCK, BLOCK + 3)), (2, range(0))):
        data = asked(client, "long", block).json()
        assert [oracle[one["ids"][0]]["sample"][1] for one in data["samples"]] == list(groups)
    text = "".join(client.get(f"/compare?run=long&page={page}").text for page in (1, 2))
    assert {int(n) for n in re.findall(r"block=(\d+)", text)} == {0, 1}


def test_what_was_not_drawn_not_kept_or_not_scored_says_so(tmp_path, client_of):
    run = tmp_path / "gaps"
    with SampleStore(run) as store:
        store.write([eval_sample(0, 0, 0, "p", 0.5, flat(0.1)), eval_sample(2, 0, 0, "p", 0.6)])
        store.write([eval_sample(4, 0, 0, "p", None, flat(0.2), error="it fell"), eval_sample(0, 1, 0, "q", 0.5)])
        store.write(
            [eval_sample(4, 1, 0, "q", 0.7, notes={"shapes": "no <b>circle</b>"}), eval_sample(4, 2, 0, "r", 0.7)]
        )
    p, q = asked(client_of(run), "gaps").json()["samples"]
    assert ["src" in one for one in p["at"]] == [True, False, True]
    assert p["at"][2]["error"] == "it fell" and p["at"][2]["values"][1] is None
    assert q["at"][1] is None and q["at"][2]["reason"] == "no <b>circle</b>"


def test_other_noise_is_not_followed(tmp_path, client_of):
    run = tmp_path / "seeds"
    with SampleStore(run) as store:
        store.write([eval_sample(n, 0, 0, "p", 0.5, seed=n) for n in (0, 2)])
    assert asked(client_of(run), "seeds").json()["samples"] == []


def test_of_many_evaluations_some_and_the_one_that_is_looked_at(tmp_path, client_of):
    run = tmp_path / "many"
    for iteration in range(11):
        add_evaluation(run, iteration, ("p",), roots=1, pictures=False)
    client = client_of(run, evaluations=4)
    some = asked(client, "many").json()
    assert some["of"] == 11 and len(some["keys"]) < 7 and {"eval-0", "eval-10"} <= set(some["keys"])
    missing = next(f"eval-{n}" for n in range(11) if f"eval-{n}" not in some["keys"])
    more = asked(client, "many", state=missing).json()
    assert sorted(more["keys"]) == sorted([*some["keys"], missing])
    iterations = [int(key.partition("-")[2]) for key in more["keys"]]
    assert iterations == sorted(iterations)


@pytest.mark.parametrize("suffix", ["webp", "mp4"])
def test_what_moves_says_so(tmp_path, client_of, suffix):
    run = tmp_path / "film"
    frames = torch.stack([flat(0.3 * n) for n in range(3)])
    with SampleStore(run) as store:
        store.write([eval_sample(i, 0, 0, "p", 0.5, frames) for i in (0, 2)])
    if suffix == "mp4":
        with sqlite3.connect(run / "samples.sqlite") as database:
            database.execute("UPDATE samples SET picture = replace(picture, '.webp', '.mp4')")
    (sample,) = asked(client_of(run), "film").json()["samples"]
    for one in sample["at"]:
        assert one.get("video", False) is (suffix == "mp4") and ("still=1" in one.get("still", "")) is (
            suffix == "webp"
        )


def test_bad_addresses_are_a_sentence_and_no_page_elsewhere_can_run_them(made, client_of):
    client = client_of(made)
    assert asked(client, "none").status_code == 404 and asked(client, block="x").status_code == 400
    script = client.get("/evaluations.js?run=made&block=0")
    assert script.status_code == 404 and "evaluations.json" in script.text and PROMPTS[0] not in script.text


def test_an_exported_site_has_scripts_with_its_own_pictures(tmp_path):
    run = keep_columns(make_run(tmp_path / "made"), "reward/mean")
    export_site(find_sources([run]), tmp_path / "site", {"votes": tmp_path / "votes.jsonl"})
    (script,) = (tmp_path / "site").glob("evaluations*.js")
    body = script.read_text()
    assert body.startswith("gallery.evaluations = ")
    data = json.loads(body.removeprefix("gallery.evaluations = ").rstrip(";\n"))
    pictures = [one["src"] for sample in data["samples"] for one in sample["at"]]
    assert len(pictures) == 18 and all((tmp_path / "site" / one).is_file() for one in pictures)
    assert f'data-evaluations="{script.name}"' in (tmp_path / "site" / "compare-made.html").read_text()
