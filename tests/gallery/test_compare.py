"""Comparison and samples: what is matched, counted, filtered and ordered, and what hostile or broken data do to it."""

from __future__ import annotations

import csv
import html
import io
import itertools
import json
import random
import re
import sqlite3
from statistics import fmean

import pytest

from diffrl.gallery.compare import Row, arrange, filter_by_prompt, likeness, match, summarise
from diffrl.gallery.query import Query
from diffrl.gallery.records import Brief
from diffrl.gallery.site import Site
from diffrl.gallery.sources import find_sources
from diffrl.gallery.static_links import StaticLinks
from diffrl.tracking.store import SampleStore, StoredSample
from reward_models.media import to_pil
from tests.gallery.made import PROMPTS, REWARDS, add_evaluation, eval_sample, flat, make_run

HOSTILE = ("<script>alert(1)</script>", "\"' onload='x' & <b>", "x" * 10_000, "שלום עולם ‮abc", "🟥 left of 🔵", "")


def brief(number, prompt="p", seed=0, group=0, root=0, path="", value=None):
    return Brief(number, (prompt, seed, group, root, path), value)


def prompts_of(text):
    """Prompts of the rows of a page, in their order."""
    return [
        html.unescape(found) for found in re.findall(r'<p class="prompt" dir="auto" title="[^"]*"[^>]*>(.*?)</p>', text)
    ]


def values_of(text):
    """Values under the pictures, as the page writes them, one list a row."""
    return [re.findall(r'class="value numbers">([^<]*)<', row) for row in text.split('<li class="item"')[1:]]


def stored(run, iteration, name):
    """The oracle: group, root and a value of every held-out sample, straight from the tables."""
    with sqlite3.connect(run / "samples.sqlite") as database:
        return {
            (prompt, group, root): raw
            for prompt, group, root, raw in database.execute(
                f"SELECT prompt, group_id, root, raw FROM samples JOIN {REWARDS} ON sample_id = id "
                "WHERE stage = 'eval' AND iteration = ? AND name = ?",
                (iteration, name),
            )
        }


# ---- pure ----


def test_only_equal_keys_match():
    base = {"prompt": "p", "seed": 5, "group": 7, "root": 11, "path": "1.0"}
    others = [{"prompt": "q"}, {"seed": 6}, {"group": 8}, {"root": 12}, {"path": "1.1"}]
    right = [brief(n, **{**base, **other}) for n, other in enumerate(others)]
    assert match([[brief(99, **base)], right[:1]], ["eval", "eval"]).rows == []
    found = match([[brief(99, **base)], [*right, brief(50, **base)]], ["eval", "eval"])
    assert [row.ids for row in found.rows] == [(99, 50)] and found.unmatched == [] and found.by == "prompt and noise"
    assert likeness(found, ["eval", "eval"]) == "same prompts, same noise"


@pytest.mark.parametrize("other", [{"seed": 6}, {"group": 8}, {"root": 12}, {"path": "1.1"}, {"stream": "train-5"}])
def test_other_noise_matches_by_prompt_and_says_so(other):
    base = {"prompt": "p", "seed": 5, "group": 7, "root": 11, "path": "1.0"}
    stream = {**other}.pop("stream", "train-0")
    right = [
        brief(n, **{**base, "prompt": p, **{k: v for k, v in other.items() if k != "stream"}})
        for n, p in enumerate("qpp")
    ]
    columns, streams = [[brief(9, **base), brief(8, **{**base, "root": 3})], right], ["train-0", stream]
    found = match(columns, streams)
    assert [row.ids for row in found.rows] == [(9, 1), (8, 2)] and found.by == "prompt"
    assert likeness(found, streams) == "same prompts, other noise"


def test_noise_that_some_columns_share_is_not_given_up_for_one_that_has_only_prompts():
    columns = [[brief(1, "a", root=1), brief(2, "a", root=2)], [brief(3, "a", root=2)], [brief(4, "a", root=2)]]
    found = match(columns, ["eval", "eval", "train-3"])
    assert [row.ids for row in found.rows] == [(2, 3, None)] and found.unmatched == [2]


def test_rows_of_several_columns_are_those_that_two_share():
    columns = [[brief(1, "a"), brief(2, "b")], [brief(3, "c")], [brief(4, "b"), brief(5, "a"), brief(6, "d")]]
    found = match(columns, ["eval"] * 3)
    assert [row.ids for row in found.rows] == [(1, None, 5), (2, None, 4)]
    assert found.unmatched == [1]


def test_pictures_of_folders_match_by_name_then_by_prompt():
    a = [brief(0, "cat", path="x/1.png"), brief(1, "", path="x/2.png")]
    b = [brief(7, "", path="x/2.webp"), brief(8, "", path="x/1.JPG")]
    found = match([a, b], ["folder", "folder"])
    assert ([row.ids for row in found.rows], found.by) == ([(0, 8), (1, 7)], "file name")
    dotted = match([[brief(0, "", path="v.1")], [brief(1, "p", path="v.2"), brief(2, "p", path="v.1")]], ["folder"] * 2)
    assert [row.ids for row in dotted.rows] == [(0, 2)]  # what follows a dot is no suffix of a picture
    run = [brief(20, "cat", group=0), brief(21, "cat", group=1), brief(22, "dog", group=2)]
    folder = [brief(30, "dog", path="1"), brief(31, "cat", path="2"), brief(32, "cat", path="3")]
    found = match([run, folder], ["eval", "folder"])
    assert ([row.ids for row in found.rows], found.by) == ([(20, 31), (21, 32), (22, 30)], "prompt")
    assert likeness(found, ["eval", "folder"]) == ""


def test_one_file_name_with_different_prompts_is_no_pair():
    """As `diffrl generate` calls the first picture of any prompt."""
    a = [brief(0, "a red circle", path="0000-0"), brief(1, "a blue square", path="0001-0")]
    b = [brief(7, "a blue square", path="0000-0"), brief(8, "a green star", path="0001-0")]
    found = match([a, b], ["folder", "folder"])
    assert ([row.ids for row in found.rows], found.by) == ([(1, 7)], "prompt")
    assert match([a[:1], b[1:]], ["folder", "folder"]).rows == []
    unknown = [brief(9, "", path="0000-0")]
    assert [row.ids for row in match([a, unknown], ["folder", "folder"]).rows] == [(0, 9)]


def test_order_and_counts_agree_with_brute_force():
    chance = random.Random(3)
    pool = [None, 0.0, 0.25, 0.25 + 1e-9, 0.5, 1.0, -2.0]
    rows = [
        Row(n, chance.choice(["b", "A", "c"]), (n, n), (chance.choice(pool), chance.choice(pool))) for n in range(199)
    ]
    known = [r for r in rows if None not in r.values]
    summary = summarise(rows)
    deltas = [r.values[1] - r.values[0] for r in known]
    assert (summary.rows, summary.compared) == (199, len(known))
    assert summary.mean == pytest.approx(fmean(deltas))
    assert summary.improved == len([d for d in deltas if round(d, 5) > 0])
    assert summary.worse == len([d for d in deltas if round(d, 5) < 0])
    assert summary.unchanged == len(known) - summary.improved - summary.worse
    for sort, number, falling in (
        ("gain", lambda r: r.change, True),
        ("loss", lambda r: r.change, False),
        ("value", lambda r: r.value, True),
    ):
        found = arrange(rows[::-1], sort)
        assert sorted(found) == sorted(rows)
        numbers = [number(row) for row in found]
        there = [n for n in numbers if n is not None]
        assert numbers == there + [None] * (len(rows) - len(there))
        assert all((a >= b) if falling else (a <= b) for a, b in itertools.pairwise(there))
        assert all(a.order < b.order for a, b in itertools.pairwise(found) if number(a) == number(b))
    assert [r.prompt for r in arrange(rows, "prompt")] == sorted([r.prompt for r in rows], key=str.lower)
    assert arrange(rows[::-1], "order") == rows
    assert filter_by_prompt([Row(0, "Ärger", (1,), (None,))], "äR") and not filter_by_prompt(rows, "z")
    lengthy = [Row(0, "a red circle above a blue square", (1,), (None,)), Row(1, "a red square", (2,), (None,))]
    assert filter_by_prompt(lengthy, " SQUARE  circ ") == lengthy[:1] and filter_by_prompt(lengthy, "red") == lengthy
    assert not filter_by_prompt(lengthy, "red red green") and filter_by_prompt(lengthy, " ") == lengthy


def test_not_a_number_counts_as_no_value():
    found = match([[brief(1, value=float("nan"))], [brief(2, value=float("inf"))]], ["eval", "eval"])
    assert found.rows[0].values == (None, None) and summarise(found.rows).compared == 0


# ---- the page ----


def test_first_against_last_evaluation_with_gains(made, client_of):
    text = client_of(made).get("/compare").text
    before, after = stored(made, 0, "shapes_strict"), stored(made, 4, "shapes_strict")
    assert len(before) == 6 and before.keys() == after.keys()
    order = sorted(before, key=lambda key: key[1:])
    assert prompts_of(text) == [key[0] for key in order]
    assert values_of(text) == [[f"{before[key]:.3f}", f"{after[key]:.3f}"] for key in order]
    changes = [after[key] - before[key] for key in order]
    chips = re.findall(r'<span class="chip (\w*)" title="change[^"]*">([^<]*)</span>', text)
    expected = [("gain", "+1.000") if c > 0 else ("loss", "−1.000") if c < 0 else ("", "±0.000") for c in changes]
    assert chips == expected and {"gain", ""} <= {css for css, _ in chips}
    counts = dict(re.findall(r'data-count="(\w+)">([^<]*)<', text))
    assert counts["rows"] == "6" and counts["improved"] == str(sum(c > 0 for c in changes))
    assert counts["mean"] == f"+{fmean(changes):.3f}" and counts["worse"] == "0"


def test_the_prompt_filter_and_what_is_left_when_nothing_fits(made, client_of):
    client = client_of(made)
    assert set(prompts_of(client.get("/compare?prompt=TRIANGLES").text)) == {PROMPTS[1]}
    empty = client.get("/compare?prompt=zebra")
    assert empty.status_code == 200 and "Nothing is left" in empty.text and "Show all 6" in empty.text
    assert "in common" not in empty.text


def test_columns_from_several_runs_and_stages(tmp_path, client_of):
    one, two = make_run(tmp_path / "one"), make_run(tmp_path / "two", iterations=6)
    client = client_of(one, two)
    text = client.get("/compare?columns=one@eval-2&columns=two@eval-6&columns=one@eval-4&reward=shapes").text
    tables = [stored(one, 2, "shapes"), stored(two, 6, "shapes"), stored(one, 4, "shapes")]
    order = sorted(tables[0], key=lambda key: key[1:])
    assert values_of(text) == [[f"{table[key]:.3f}" for table in tables] for key in order]
    for words in ("one · evaluation 2", "two · evaluation 6"):
        assert f'<span class="column">{words}</span>' in text
    default = client.get("/compare").text  # the last of each
    assert re.findall(r'<option value="([^"]+)" selected>[^<]*evaluation', default) == ["one@eval-4", "two@eval-6"]
    train = client.get("/compare?columns=one@train-2&columns=two@train-2&reward=total").text
    assert "8</strong> matched pairs" in train and "Side by side: same prompts, same noise. " in train
    train = client.get("/compare?columns=one@train-0&columns=one@train-2&reward=total").text  # noise of its own
    assert "8</strong> matched pairs" in train and "Side by side: same prompts, other noise. " in train
    assert "training draws new noise at every iteration" in train and "same noise</h1>" not in train
    text = client.get("/compare?columns=one@eval-0&columns=one@train-2").text  # seed, group and root are the same
    assert "Side by side: same prompts, other noise. " in text
    assert "Side by side: same prompts, same noise. " in default


def test_nothing_in_common_is_a_sentence(tmp_path, client_of):
    one, two = make_run(tmp_path / "one"), tmp_path / "two"
    with SampleStore(two) as store:
        store.write([eval_sample(0, 0, 0, PROMPTS[0], 0.5, flat(0.1), seed=1)])
        store.write([eval_sample(3, 0, 0, "a prompt of its own", 0.5, flat(0.1))])
    client = client_of(one, two)
    text = client.get("/compare").text
    assert "no prompt in common" in text and prompts_of(text) == [] and "<h1>Side by side</h1>" in text
    text = client.get("/compare?columns=one@eval-4&columns=two@eval-0").text
    assert "other noise. " in text and prompts_of(text) == [PROMPTS[0]] and "eval.seed" in text
    three = make_run(tmp_path / "three")
    text = client_of(one, two, three).get("/compare").text  # the odd one makes room for the two others
    assert "Left out: two" in text and len(values_of(text)[0]) == 2


def drawn_with(run, **model):
    """A run that says in its configuration which model it drew with."""
    add_evaluation(run, 0)
    (run / "config.yaml").write_text(json.dumps({"model": model}), encoding="utf-8")
    return run


SD3 = {"family": "sd3", "path": "models/base", "height": 512, "width": 512, "frames": None}
SIZELESS = {**SD3, "height": None, "width": None}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (SD3, SD3, True),
        (SD3, {**SD3, "path": "models/another", "dtype": "bfloat16"}, True),  # as large, so the same numbers
        (SIZELESS, {**SIZELESS, "path": "/elsewhere/base"}, True),
        (SIZELESS, {**SIZELESS, "path": "models/another"}, False),  # which may draw larger pictures
        (SD3, {**SD3, "family": "flux"}, False),
        (SD3, {**SD3, "height": 768}, False),
        (SD3, {**SD3, "frames": 17}, False),
        (SD3, {}, False),
    ],
)
def test_another_model_or_size_is_other_noise(tmp_path, client_of, one, other, same):
    runs = drawn_with(tmp_path / "one", **one), drawn_with(tmp_path / "two", **other)
    text = client_of(*runs).get("/compare").text
    assert f"Side by side: same prompts, {'same' if same else 'other'} noise. " in text
    assert ("Their noise is another" in text) is not same and len(values_of(text)) == 6


def test_one_column_is_filtered_sorted_and_turned_like_any(tmp_path, client_of):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for n in range(31):
        to_pil(flat(n / 31)).save(folder / f"{n:02d}.png")
        (folder / f"{n:02d}.txt").write_text(f"{'red' if n % 3 else 'blue'} {n:02d}")
    run = tmp_path / "one"
    add_evaluation(run, 0, [f"{'red' if n % 3 else 'blue'} {n:02d}" for n in range(31)], roots=1, pictures=False)
    names = [f"{'red' if n % 3 else 'blue'} {n:02d}" for n in range(31)]
    for path in (folder, run):
        client = client_of(path)
        first = client.get("/compare").text
        following = html.unescape(re.search(r'rel="next" href="([^"]*)"', first)[1])
        second = client.get(following)
        assert second.status_code == 200 and prompts_of(first) + prompts_of(second.text) == names
        key = re.search(r'<input type="hidden" name="columns" value="([^"]*)"', first)[1]  # there is no other to choose
        blue = client.get(f"/compare?columns={key}&columns=&prompt=BLUE&sort=prompt")
        assert blue.status_code == 200 and prompts_of(blue.text) == sorted(name for name in names if "blue" in name)
        assert '<a class="small" href="/compare?columns=' in blue.text, "and can be reset"


def test_where_nothing_can_be_compared_nothing_is_counted(made, client_of):
    client = client_of(made)
    text = client.get("/compare?columns=made@eval-0&columns=made@eval-4&columns=made@train-2&reward=shapes").text
    assert "Nothing of training 2 matches another column" in text and len(values_of(text)) == 6
    counts = dict(re.findall(r'data-count="(\w+)">([^<]*)<', text))
    unknown = dict.fromkeys(("mean", "improved", "unchanged", "worse"), "–")
    assert counts == {"rows": "6", "reward": "shapes", "from": "evaluation 0", "to": "training 2"} | unknown
    chips = re.compile(r'<span class="chip[^"]*"( hidden)?><span data-count')
    assert chips.findall(text) == [" hidden"] * 3 and chips.findall(client.get("/compare").text) == [""] * 3


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("compare?run=made&sort=best", 400, "sort must be one of"),
        ("compare?run=made&page=0", 400, "page must be a whole number"),
        ("compare?run=made&page=3", 400, "page"),
        ("compare?" + "&".join(["columns=made@eval-0"] * 7), 400, "1 to 6 columns"),
        ("compare?columns=made@eval-0&columns=made@eval-999", 404, "no samples of"),
        ("compare?columns=../x@eval-0&columns=made@eval-0", 404, "There is no run"),
        ("compare?run=none", 404, "There is no run"),
        ("compare?run=made&reward=%3Cscript%3E", 200, "have no reward &#39;&lt;script&gt;&#39;. Shown: shapes_strict"),
    ],
)
def test_bad_parameters_are_a_sentence(made, client_of, address, status, words):
    answer = client_of(made).get(f"/{address}")
    assert answer.status_code == status
    assert words in answer.text and "<script>" not in answer.text.split("<main")[1].split("</main>")[0]


def test_missing_numbers_and_pictures_stay_missing(tmp_path, client_of):
    run = tmp_path / "odd"
    with SampleStore(run) as store:
        for iteration in (0, 3):
            store.write([eval_sample(iteration, n, 0, p, None, flat(0.2)) for n, p in enumerate(HOSTILE)])
            store.write([eval_sample(iteration, 90, 0, "failed", None, None, error="it fell over")])
    (run / "samples" / "eval-000003" / "0-0.webp").unlink()
    client = client_of(run)
    text = client.get("/compare").text
    assert prompts_of(text) == [*HOSTILE[:-1], "no prompt", "failed"]
    assert {value for row in values_of(text) for value in row} == {"–"}
    assert 'title="change' not in text and "mean change" in text
    assert "not scored:" in text and "no image was kept" in text
    missing = client.get("/media/odd/samples/eval-000003/0-0.webp?size=256")
    assert missing.status_code == 404 and missing.headers["content-type"].startswith("image/svg")


def test_samples_shows_every_state_with_advantages_and_errors(made, client_of):
    with SampleStore(made) as store:
        store.write(
            [StoredSample("train", 1, 5, 0, 0, "lost", error="the scorer <fell> over", rewards={"shapes": None})]
        )
    client = client_of(made)
    text = client.get("/compare?columns=made@eval-4").text
    assert values_of(text) == [
        [f"{v:.3f}"] for _, v in sorted(stored(made, 4, "shapes_strict").items(), key=lambda i: i[0][1:])
    ]
    train = client.get("/compare?columns=made@train-1&reward=total&sort=value").text
    shown = [values[0] for values in values_of(train)]
    assert shown[-1] == "–" and shown[:-1] == sorted(shown[:-1], reverse=True) and len(shown) == 9
    assert "the scorer &lt;fell&gt; over" in train and re.findall(r"advantage <span[^>]*>([^<]*)", train)
    few = client.get("/compare?columns=made@train-1&reward=total&prompt=circle").text
    assert 0 < len(values_of(few)) < 8
    assert set(prompts_of(few)) == {PROMPTS[0]}


def test_a_run_with_one_evaluation_or_none_says_so(tmp_path, client_of):
    one = tmp_path / "one"
    add_evaluation(one, 0)
    text = client_of(one).get("/compare").text
    assert "only evaluation 0 so far" in text and len(values_of(text)) == 6
    none = tmp_path / "none"
    SampleStore(none).close()
    answer = client_of(none).get("/compare")
    assert answer.status_code == 200 and "no samples yet" in answer.text


def test_an_exported_comparison_has_all_rows_in_full_precision_and_the_slider(tmp_path):
    run = make_run(tmp_path / "made", iterations=6, prompts=tuple(f"prompt {n}" for n in range(29)), roots=1)
    links = StaticLinks(lambda source, file, size, still: f"media/{file}")
    site = Site(find_sources([run]), links)
    text = site.answer("compare", Query({"run": ["made"]})).body
    assert len(prompts_of(text)) == 29 and 'rel="next"' not in text and "data-local" in text
    rows = [json.loads(html.unescape(data)) for data in re.findall(r'data-rewards="([^"]*)"', text)]
    before, after = stored(run, 0, "shapes"), stored(run, 6, "shapes")
    assert [row["shapes"] for row in rows] == [[before[k], after[k]] for k in sorted(before, key=lambda k: k[1:])]
    assert {"evaluations.js"} <= {name for _, name, _ in links.pending}, "the slider shows what lies between"
    assert '<select name="columns"' not in text


def test_the_csv_has_every_row_of_the_page_on_all_of_its_pages(tmp_path, client_of):
    run = make_run(tmp_path / "long", iterations=2, prompts=tuple(f"prompt {n:02d}" for n in range(31)), roots=1)
    client = client_of(run)
    address = "run=long&reward=shapes&sort=gain&show=better"
    answer = client.get(f"/compare.csv?{address}")
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    before, after = stored(run, 0, "shapes"), stored(run, 2, "shapes")
    expected = sorted((k for k in before if after[k] - before[k] > 1e-5), key=lambda k: (before[k] - after[k], k[1:]))
    assert 0 < len(expected) < 31 and [line["prompt"] for line in lines] == [key[0] for key in expected]
    for line, key in zip(lines, expected, strict=True):
        assert float(line["shapes, evaluation 0"]) == before[key] and float(line["shapes, evaluation 2"]) == after[key]
        assert float(line["change"]) == after[key] - before[key]
    link = html.unescape(re.search(r'href="([^"]*compare[.]csv[^"]*)"', client.get(f"/compare?{address}").text)[1])
    assert client.get(link).text == answer.text
    assert client.get("/compare.csv?run=none").status_code == 404
    other = client.get("/compare.csv?run=long&reward=nothing")
    assert other.status_code == 400 and "have no reward" in other.text, "and not the numbers of another"
