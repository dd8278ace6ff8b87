"""The table above a comparison: against scipy on the tables of the store, and its links against its numbers."""

from __future__ import annotations

import html
import random
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest
from scipy import stats

from diffrl.gallery.compare import match
from diffrl.gallery.query import Query
from diffrl.gallery.records import Brief
from diffrl.gallery.site import Site
from diffrl.gallery.sources import find_sources
from diffrl.gallery.static_links import StaticLinks
from diffrl.gallery.votes import usual_pair
from diffrl.tracking.store import SampleStore
from tests.gallery.made import CONFIG, eval_sample, make_run, write_metrics
from tests.gallery.test_compare import stored, values_of

PROMPTS = [f"prompt {number}" for number in range(12)]
SKILL = {"one": 0.2, "two": 0.4, "three": 0.36}


def noisy(run: Path) -> Path:
    """A run with an evaluation of 12 prompts with three samples each, whose scores go together within a prompt."""
    draw = random.Random(run.name)
    easy = random.Random(0)
    run.mkdir(parents=True)
    write_metrics(run, 4)
    (run / "config.yaml").write_text(CONFIG, encoding="utf-8")
    with SampleStore(run) as store:
        store.write(
            [
                eval_sample(4, group, root, prompt, SKILL[run.name] + 0.3 * bonus + 0.3 * draw.random())
                for group, prompt in enumerate(PROMPTS)
                for bonus in (easy.random(),)
                for root in range(3)
            ]
        )
    return run


@pytest.fixture
def three(tmp_path):
    return [noisy(tmp_path / name) for name in SKILL]


def cells(text: str) -> dict[str, list[str]]:
    """The table's cells, by the run of its row."""
    table = re.search(r'<table class="score-table".*?</table>', text, re.S)[0]
    rows = re.findall(r'<th scope="row">(?:<i [^>]*></i> )?(.*?)</th>(.*?)</tr>', table, re.S)
    plain = {
        label: [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td.*?</td>", row, re.S)] for label, row in rows
    }
    return {label.partition(" ")[0]: found for label, found in plain.items()}


def address(runs, **more):
    columns = "&".join(f"columns={run.name}@eval-4" for run in runs)
    return f"/compare?{columns}&reward=shapes&" + "&".join(f"{key}={value}" for key, value in more.items())


@pytest.mark.parametrize("baseline", [0, 1])
def test_means_differences_and_intervals_over_prompts(three, client_of, baseline):
    found = cells(client_of(*three).get(address(three, against=f"{three[baseline].name}@eval-4")).text)
    tables = [stored(run, 4, "shapes") for run in three]
    for place, run in enumerate(three):
        row = found[run.name]
        assert row[0] == f"{fmean(tables[place].values()):.3f}" and row[-2:] == ["4,000", "0.1"]
        if place == baseline:
            assert row[1] == "the others are compared with this one"
            continue
        changes = defaultdict(list)
        for key, value in tables[place].items():
            changes[key[0]].append(value - tables[baseline][key])
        oracle = stats.ttest_1samp([fmean(own) for own in changes.values()], 0)
        low, high = oracle.confidence_interval(0.95)
        mean = fmean(fmean(own) for own in changes.values())
        words = [f"{value:+.3f}".replace("-", "−") for value in (mean, low, high)]
        assert row[1:3] == [words[0], f"{words[1]} to {words[2]}"]
        every = [change for own in changes.values() for change in own]
        assert row[3:6] == [str(sum(c > 0 for c in every)), "0", str(sum(c < 0 for c in every))]


def test_grey_is_what_the_interval_does_not_resolve(three, client_of):
    text = client_of(*three).get(address(three, against="two@eval-4")).text
    table = re.search(r'<table class="score-table".*?</table>', text, re.S)[0]
    difference = r'<td class="number"><span class="(\w*)">([+−][\d.]+)</span></td>'
    marks = re.findall(difference + r'\n<td class="number[^"]*">([+−])[\d.]+ to ([+−])', table)
    assert len(marks) == 2
    for css, mean, low, high in marks:
        assert css == ("soft" if low != high else "gain" if mean[0] == "+" else "loss")
    assert {css for css, *_ in marks} == {"soft", "loss"} and "grey where they hold 0" in text


def test_every_count_leads_to_exactly_these_samples(three, client_of):
    client = client_of(*three)
    text = client.get(address(three, against="two@eval-4")).text
    links = re.findall(r'<td class="number"><a href="([^"]+)">([\d,]+)</a>', text)
    assert len(links) >= 3
    for link, count in links:
        shown = client.get(html.unescape(link)).text
        assert re.search(r'data-count="rows">([\d,]+)<', shown)[1] == count, link
        of, show = list(SKILL).index(re.search(r"of=(\w+)", html.unescape(link))[1]), re.search(r"show=(\w+)", link)[1]
        signs = re.findall(r'<span class="chip (\w*)" title="change[^"]*">', shown)
        assert set(signs) == {{"better": "gain", "worse": "loss", "same": ""}[show]}
        # the table says the same whatever is shown
        assert cells(shown) == cells(text)
        page = values_of(shown)
        assert all((float(row[of]) >= float(row[1])) == (show == "better") for row in page)


@pytest.mark.parametrize(
    ("asked", "pair"),
    [
        ({}, (2, 0)),
        ({"of": "one"}, (0, 1)),
        ({"against": "three"}, (0, 2)),
        ({"of": "two", "against": "two"}, (1, 0)),
        ({"of": "one", "against": "one"}, (0, 1)),
        ({"of": "gone", "against": "two"}, (2, 1)),
    ],
)
def test_a_column_is_compared_with_another(three, client_of, asked, pair):
    """Whatever the address says: a form keeps what it named when a column was taken away."""
    text = client_of(*three).get(address(three, **{key: f"{name}@eval-4" for key, name in asked.items()})).text
    names = list(SKILL)
    of, base = (stored(three[place], 4, "shapes") for place in pair)
    mean = fmean(of[key] - base[key] for key in of)
    assert re.search(r'data-count="mean">([^<]*)<', text)[1] == f"{mean:+.3f}".replace("-", "−")
    assert cells(text)[names[pair[1]]][1] == "the others are compared with this one"


def test_what_the_server_says_an_exported_page_says_too(three, client_of):
    """The same columns in the same order: the same numbers, without a server."""
    sources = find_sources(three)
    site = Site(sources, StaticLinks(lambda *wanted: "x"), {"votes": three[0] / "votes.jsonl"})
    columns = [f"{run.name}@eval-4" for run in three]
    exported = site.answer("compare", Query({"columns": columns, "reward": ["shapes"]})).body
    assert cells(exported) == cells(client_of(*three).get(address(three)).text)


def test_the_overview_tells_how_sure_a_change_is(tmp_path, client_of):
    """Where all samples of an evaluation are kept; else the numbers of the metrics are of more than is there."""
    run = make_run(tmp_path / "made")
    before, after = stored(run, 0, "shapes"), stored(run, 4, "shapes")
    changes = defaultdict(list)
    for key, value in after.items():
        changes[key[0]].append(value - before[key])
    low, high = stats.ttest_1samp([fmean(own) for own in changes.values()], 0).confidence_interval(0.95)
    words = f"{low:+.3f} to {high:+.3f}".replace("-", "−")
    text = client_of(run).get("/").text
    assert words in text and '<span class="chip "' in text  # three prompts tell nothing, and it is not green
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("samples: 6", "samples: 7"))
    assert words not in client_of(run).get("/").text


def test_curves_of_runs_that_are_measured_differently_say_so(three, client_of):
    same, other = "always the same prompts and noise", "heights do not compare"
    text = client_of(*three).get("/curves").text
    assert same in text and other not in text
    config = three[1] / "config.yaml"
    config.write_text(config.read_text().replace("samples: 6", "samples: 200"))
    text = client_of(*three).get("/curves").text
    assert other in text and same not in text


def edited(run: Path) -> Path:
    """A run whose evaluation holds three edits in the same words of each of four images, two samples of each."""
    draw, easy = random.Random(run.name), random.Random(0)
    words = ("make it red", "make it blue", "remove the circle")
    run.mkdir(parents=True)
    write_metrics(run, 4)
    (run / "config.yaml").write_text(CONFIG, encoding="utf-8")
    with SampleStore(run) as store:
        store.write(
            [
                eval_sample(4, 3 * image + i, root, text, SKILL[run.name] + bonus * draw.random(), metadata=metadata)
                for image in range(4)
                for metadata, bonus in [({"source": f"/lists/{image}.png", "note": 'a "source"'}, easy.random())]
                for i, text in enumerate(words)
                for root in range(2)
            ]
        )
    return run


def test_the_same_words_about_another_image_are_another_prompt(tmp_path, client_of):
    """Twelve prompts in three texts: scipy's test over twelve means, as `records.Prompt.key` counts them."""
    runs = [edited(tmp_path / name) for name in ("one", "two")]
    row = cells(client_of(*runs).get(address(runs, against="one@eval-4")).text)["two"]
    tables = []
    for run in runs:
        with SampleStore.open_readonly(run) as store:
            samples = list(store.read(stage="eval"))
        tables.append({(one.prompt, one.metadata["source"], one.root): one.rewards["shapes"] for one in samples})
    changes = defaultdict(list)
    for key, value in tables[1].items():
        changes[key[:2]].append(value - tables[0][key])
    assert len(changes) == 12
    low, high = stats.ttest_1samp([fmean(own) for own in changes.values()], 0).confidence_interval(0.95)
    assert row[2] == f"{low:+.3f} to {high:+.3f}".replace("-", "−")


def test_edits_of_one_instruction_stand_beside_those_of_the_same_image(tmp_path):
    """Where the noise differs the n-th sample of a prompt does, whatever the order of the images."""
    orders = ((0, 1, 2), (2, 0, 1))
    columns = [
        [Brief(n, ("make it red", seed, n, 0, ""), 0.1 * n, source=f"/{at}.png") for n, at in enumerate(order)]
        for seed, order in enumerate(orders)
    ]
    rows = match(columns, ["one", "another"]).rows
    found = {row.source: tuple(orders[place][at] for place, at in enumerate(row.ids)) for row in rows}
    assert found == {f"/{image}.png": (image, image) for image in range(3)}
    same_noise = [[Brief(0, ("make it red", 0, 0, 0, ""), 0.5, source=name)] for name in ("/a.png", "/b.png")]
    assert not match(same_noise, ["one", "one"]).rows


def test_the_best_of_many_runs_is_found_before_they_are_cut_to_a_page(tmp_path, client_of):
    """The gallery lists runs in its own order; the best one is not among the first six of it."""
    runs = []
    for number in range(9):
        run = make_run(tmp_path / f"run{number}")
        with SampleStore(run) as store:
            samples = [(group, f"prompt {group}") for group in range(5)]
            skill = 0.9 if number in (0, 8) else 0.1 + 0.01 * number
            store.write([eval_sample(8, group, 0, prompt, skill - 0.01 * (number == 8)) for group, prompt in samples])
        runs.append(run)
    text = client_of(*runs).get("/compare?reward=shapes").text
    found = cells(text)
    assert "Best: run0" in text and "6 best of 9" in text
    assert set(found) == {"run0", "run8", "run4", "run5", "run6", "run7"}


@pytest.fixture
def strangers(tmp_path):
    """Nine runs of one evaluation each, of which only the seventh and the last have a prompt in common."""
    names = [f"run{number}" for number in range(9)]
    prompts = {name: (f"prompt of {name}",) for name in names} | {"run6": ("shared",), "run8": ("shared",)}
    return [make_run(tmp_path / name, iterations=0, prompts=prompts[name], roots=1) for name in names]


def test_a_vote_is_on_two_that_match_wherever_they_stand(strangers):
    site = Site(find_sources(strangers), StaticLinks(lambda *wanted: "x"), {"votes": "x"})
    assert {column.source.title for column in usual_pair(site)} == {"run6", "run8"}


def seeded(run: Path, seed: int, **more: str) -> None:
    """Write the configuration of another seed, of another arm where more of it differs."""
    text = CONFIG.replace("seed: 0", f"seed: {seed}").replace("name: made", f"name: seed-{seed}")
    for key, value in more.items():
        text += f"{key}: {value}\n"
    (run / "config.yaml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        ({"one": (0, ""), "two": (1, ""), "three": (2, "")}, "Best of 3 seeds of one configuration: two,"),
        ({"one": (0, ""), "two": (0, "b"), "three": (1, "b")}, "Best of 3 runs, seeds of 2 configurations: two,"),
        ({"one": (0, ""), "two": (0, "b"), "three": (0, "c")}, "Best: two,"),
        ({"one": (0, ""), "two": (0, ""), "three": (0, "")}, "Best: two,"),
    ],
)
def test_seeds_of_one_configuration_are_no_rivals(three, client_of, arms, words):
    for run in three:
        seed, arm = arms[run.name]
        seeded(run, seed, **({"train": f"{{optimizer: {arm}}}"} if arm else {}))
    assert words in client_of(*three).get(address(three)).text
    run_pages = "".join(f"columns={three[0].name}@eval-4&" for _ in range(3))
    assert " seeds of " not in client_of(*three).get(f"/compare?{run_pages}").text


def test_seeds_that_were_cut_from_a_page_are_counted(tmp_path, client_of):
    runs = [make_run(tmp_path / f"run{number}", iterations=0, roots=1) for number in range(8)]
    for number, run in enumerate(runs):
        seeded(run, number // 2, train=f"{{optimizer: {'ab'[number % 2]}}}")
    text = client_of(*runs).get("/compare?reward=shapes").text
    assert "Best of 8 runs, 4 seeds of each of 2 configurations: " in text


def test_a_difference_over_other_samples_than_its_means_says_both(tmp_path, client_of):
    """A run with fewer prompts than the baseline: their means are of other samples than the difference."""
    prompts = {"a": 6, "b": 6, "c": 3}
    runs = []
    for place, (name, count) in enumerate(prompts.items()):
        run = make_run(tmp_path / name)
        with SampleStore(run) as store:
            store.truncate_after(-1, ["eval"])
            store.write([eval_sample(4, g, 0, f"prompt {g}", 0.1 * g + 0.05 * place) for g in range(count)])
        runs.append(run)
    found = cells(client_of(*runs).get(address(runs, against="a@eval-4")).text)
    assert [found[name][-3] for name in prompts] == ["6", "6", "3"]
    assert found["a"][0] == "0.250" and found["b"][1] == "+0.050"
    assert found["c"][0] == "0.200" and found["c"][1] == "+0.100of 3: 0.200, 0.100"
