"""report.html: one file that needs nothing else, true to the run's files, of runs in any state."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from PIL import Image

from diffrl.gallery.costs import costs_of
from diffrl.gallery.overview import lead
from diffrl.gallery.pages.run import PAIRS
from diffrl.gallery.progress import Progress
from diffrl.gallery.query import Query
from diffrl.gallery.report import write_report
from diffrl.gallery.report_parts import telling_tree
from diffrl.gallery.series import Track
from diffrl.gallery.site import Site
from diffrl.gallery.sources import find_sources
from diffrl.gallery.static_links import StaticLinks
from diffrl.statistics import clustered_estimate
from diffrl.tracking.store import SampleStore
from tests.gallery.made import (
    PROMPTS,
    add_evaluation,
    eval_sample,
    flat,
    keep_columns,
    make_run,
    metrics_rows,
    write_metrics,
)
from tests.gallery.made_trees import forest, leaf, pool
from tests.gallery.made_trees import write as write_tree


class Parsed(HTMLParser):
    """A document's texts by section, and everything in it that could ask for something from outside."""

    VOID = {"meta", "link", "img", "br", "hr", "input"}

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.handlers, self.images = [], [], [], []
        self.sections, self._section, self.open = {"": ""}, "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "srcset", "xlink:href", "action", "data", "poster", "background"):
                self.addresses.append(value)
            if name.startswith("on"):
                self.handlers.append(name)
            if name == "style" and "url(" in value:
                self.addresses += re.findall(r"url\(['\"]?([^)'\"]*)", value)
            if name == "src" and tag == "img":
                self.images.append(value.partition("#")[0])  # whose fragment asks for sharp pixels
            if name == "aria-labelledby":
                self._section = value
                self.sections[value] = ""

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass
        if tag not in ("a", "b", "span"):
            self.sections[self._section] += " "
        if tag == "section":
            self._section = ""

    def handle_data(self, text):
        if self.open and self.open[-1] == "style":
            self.addresses += re.findall(r"url\(['\"]?([^)'\"]*)", text) + re.findall(r"@import[^;]*", text)
        else:
            self.sections[self._section] += text

    def words(self, section=""):
        return " ".join(self.sections[section].split())


def report_of(run):
    path = write_report(run)
    assert path == run / "report.html"
    return Parsed(path.read_text(encoding="utf-8"))


def assert_alone(parsed):
    """Nothing outside of the file is asked for, and nothing in it runs."""
    assert not parsed.handlers and not {"script", "iframe", "object", "embed", "form", "base"} & set(parsed.tags)
    assert parsed.addresses
    assert not [one for one in parsed.addresses if not one.startswith(("data:", "#"))]


def test_a_finished_run_on_one_page(made):
    summary = json.loads((made / "summary.json").read_text())
    summary["seconds"]["trees"] = 0.6  # no part of training, as `diffrl train` says too
    (made / "summary.json").write_text(json.dumps(summary))
    parsed = report_of(made)
    assert_alone(parsed)
    head = parsed.words()
    assert "Held-out shapes_strict rose from 0.200 to 0.600 between iterations 0 and 4." in head
    assert "finished 4 of 4 iterations" in head and "+0.400" in head and "+0.200" in head
    costs = parsed.words("costs")
    inside = {name: value for name, value in summary["seconds"].items() if name not in ("evaluation", "trees")}
    for name, seconds in inside.items():
        assert f"{name} {seconds:.1f} {100 * seconds / sum(inside.values()):.1f} %" in costs
    assert "evaluation 2.0 outside" in costs and "trees 0.6 outside" in costs and "rollout 3,200" in costs
    facts = parsed.words("facts")
    assert "3,900 counted, 100 skipped (no advantage), 4,000 planned" in facts and "peak memory 1.00 GiB" in facts
    assert "tau 0.620 0.680 0.650 0.620 0.680" in parsed.words("fidelity")
    assert "assets/tiny-sd3" in parsed.words("config") and "3.11.7" in parsed.words("environment")
    assert "No guard and no sentinel raised an alarm." in head
    assert "No tree was recorded" in parsed.words("tree")
    assert parsed.tags.count("svg") >= 5 and (made / "report.html").stat().st_size < 500_000


def test_pairs_are_the_first_ones_with_their_pictures_and_rewards(made):
    with SampleStore(made) as store:
        add = [
            eval_sample(i, g, 0, f"prompt {g}", i / 10, flat(g / 31, 0.2 + i / 10))
            for i in (0, 4)
            for g in range(3, 23)
        ]
        store.write(add)
    parsed = report_of(made)
    words = parsed.words("pairs")
    assert f"left evaluation 0, right evaluation 4: same prompts, same noise, the first {PAIRS} of" in words
    assert len(parsed.images) == 2 * PAIRS
    pictures = [Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) for uri in parsed.images]
    assert all(picture.format == "WEBP" and max(picture.size) <= 256 for picture in pictures)
    for place, picture in enumerate(
        pictures[: 2 * len(PROMPTS) * 2]
    ):  # three prompts with two noises, before and after
        pair, after = divmod(place, 2)
        expected = flat(pair // 2 / 7 + pair % 2 / 31, 0.3 + 0.1 * (4 * after % 5))
        assert picture.convert("RGB").getpixel((20, 20)) == tuple(expected[:, 20, 20].tolist())
    assert [words.count(f"prompt {g}") for g in (3, 8, 9)] == [1, 1, 0]


def test_large_pictures_become_thumbnails(tmp_path):
    run = make_run(tmp_path / "large", iterations=2, size=900)
    parsed = report_of(run)
    sizes = {Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).size for uri in parsed.images}
    assert sizes == {(256, 256)} and (run / "report.html").stat().st_size < 1_000_000


def test_what_moves_keeps_moving_if_it_is_small(tmp_path):
    import torch

    run = make_run(tmp_path / "clips", iterations=0)
    clip = torch.stack([flat(0.1 * n) for n in range(3)])
    with SampleStore(run) as store:
        store.write([eval_sample(i, 0, 0, PROMPTS[0], 0.5, clip) for i in (0, 3)])
    frames = {Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).n_frames for uri in report_of(run).images}
    assert frames == {3}


def test_a_tree_is_shown_with_its_story(made):
    write_tree(made, forest(iteration=2, group=0))
    flat_tree = forest(iteration=1, group=1)
    same = [replace(node, leaf=replace(node.leaf, total=0.5)) if node.leaf else node for node in flat_tree.nodes]
    write_tree(made, replace(flat_tree, nodes=same))
    write_tree(made, pool(iteration=3, group=5))
    found, torn = telling_tree(made)
    assert torn == ""
    assert (found.iteration, found.group) == (2, 0)  # the first with a spread, not the first of all
    parsed = report_of(made)
    assert_alone(parsed)
    words = parsed.words("tree")
    assert "Iteration 2, “a red circle above a blue square”" in words and "Images of this prompt 16" in words
    assert len(parsed.images) > 12


def test_of_the_first_trees_the_one_whose_rewards_differ_most_is_told(made):
    wide = forest(iteration=2, group=4)
    nodes = list(wide.nodes)
    last = max(node.id for node in nodes if node.leaf)
    nodes[last] = replace(nodes[last], leaf=leaf(9.0))
    write_tree(made, forest(iteration=2, group=0))
    write_tree(made, replace(wide, nodes=nodes))
    assert telling_tree(made)[0].group == 4


def test_a_broken_tree_is_a_sentence_and_hides_no_other(made):
    folder = write_tree(made, forest(iteration=2, group=0))
    (folder / "tree.json").write_text("{")
    assert "000002-0/tree.json cannot be read" in report_of(made).words("tree")
    write_tree(made, forest(iteration=3, group=0))
    write_tree(made, forest(iteration=2, group=7))
    torn = write_tree(made, forest(iteration=1, group=0))
    (torn / "tree.json").write_text("[]")
    assert (telling_tree(made)[0].iteration, telling_tree(made)[0].group) == (2, 7)
    words = report_of(made).words("tree")
    assert "Iteration 2, “a red circle above a blue square”" in words
    assert "000001-0/tree.json cannot be read" in words and "The same goes for 1 more." in words


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0.5, 0.5000000001, "Held-out shapes stayed at 0.500 between iterations 0 and 4."),
        (0.5001, 0.5004, "Held-out shapes stayed at 0.500 between iterations 0 and 4."),
        (0.5, 0.499, "Held-out shapes fell from 0.500 to 0.499 between iterations 0 and 4."),
    ],
)
def test_what_is_rounding_is_no_change(before, after, expected):
    rows = [{"iteration": 4 * turn, "held_out/shapes": value} for turn, value in enumerate((before, after))]
    course = Progress("finished", 4, 4, 0.0, rows, [], 0)
    assert lead(course.headline, course) == expected


@pytest.mark.parametrize(("lower", "word"), [((), "worse"), ({"blur"}, "better")])
def test_the_first_sentence_judges_by_the_interval_and_the_direction(lower, word):
    rows = [{"iteration": 4 * turn, "held_out/blur": value} for turn, value in enumerate((0.5, 0.4))]
    course = Progress("finished", 4, 4, 0.0, rows, [], 0, lower=lower)
    clear, unclear = (clustered_estimate(changes, "abc") for changes in ((-0.1, -0.12, -0.08), (-0.6, 0.3, 0.0)))
    assert f" That is {word}:" in lead(course.headline, course, {"blur": clear})
    assert "interval includes 0" in lead(course.headline, course, {"blur": unclear})


def chips(page: str) -> list[str]:
    """Classes of the held-out changes, in their order."""
    return re.findall(r'<span class="chip (\w*)" title="last evaluation against the first', page)


def test_a_change_is_coloured_where_its_interval_leaves_0_out(tmp_path, client_of):
    """Two of three prompts get better and one worse: nothing is told. Of twenty one gets worse: better."""
    few = make_run(tmp_path / "runs" / "few")
    many = make_run(tmp_path / "runs" / "many", prompts=[f"prompt {n}" for n in range(20)])
    config = (many / "config.yaml").read_text(encoding="utf-8")
    (many / "config.yaml").write_text(config.replace("samples: 6", "samples: 40"), encoding="utf-8")
    for run, expected in ((few, ["", ""]), (many, ["gain", "gain"])):
        keep_columns(run, "held_out/shapes", "held_out/shapes_strict")
        assert chips(write_report(run).read_text(encoding="utf-8")) == expected, run.name
        client = client_of(run)
        assert chips(client.get("/report").text) == chips(client.get("/run").text) == expected, run.name
    (many / "config.yaml").write_text(config.replace("samples: 6", "samples: 41"), encoding="utf-8")
    assert chips(write_report(many).read_text(encoding="utf-8")) == ["", ""], "not all samples are kept: no interval"


def test_a_run_that_goes_on(tmp_path):
    run = make_run(tmp_path / "going", finished=False)
    (run / "config.yaml").write_text("run: {name: going, iterations: 40}\n")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 5, "rew')
    parsed = report_of(run)
    assert_alone(parsed)
    assert "not finished 4 of 40 iterations, last written" in parsed.words()
    assert "Added up from the iterations so far." in parsed.words("costs")
    assert "rollout 1.6 53.3 %" in parsed.words("costs")  # 4 x 0.4 of 4 x 0.75
    assert "training iterations only" not in parsed.words("costs")  # nothing says that there were others


def test_the_costs_of_a_run_that_goes_on_add_up(tmp_path):
    """The total of a row has held-out evaluations, the counts of single iterations do not."""
    run = make_run(tmp_path / "going", finished=False)
    parts = {"precision/float32": 900, "decodes": 128}
    total = {2: 2 * 900 + 500, 4: 4 * 900 + 1200}
    rows = [
        {**row, **(parts if row["iteration"] else {}), "network_evaluations": total.get(row["iteration"])}
        for row in metrics_rows(4)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parsed = report_of(run)
    words, facts = parsed.words("costs"), parsed.words("facts")
    assert "Network evaluations by purpose rollout 3,200 evaluation 1,200 update 400 " in words  # 4,800 in all
    assert "Network evaluations by precision, training iterations only float32 3,600" in words
    assert "network evaluations 4,800 so far" in facts and "decodes 512 in training iterations" in facts


def test_alarms_resumptions_and_the_exploring_copy_are_told(made):
    (made / "log.txt").write_text(
        "Resuming soon.\n" + "In 5 iterations the spread collapsed. (guards.collapsed_spread)\n" * 2
    )
    environment = json.loads((made / "environment.json").read_text())
    resumed = [{**environment, "run_id": "x"}, {**environment, "device": "cuda", "run_id": "y"}]
    resumed[1]["changed"] = {"after_iteration": 2, "run.iterations": {"was": 2, "is": 4}}
    (made / "environment.json").write_text(json.dumps({**environment, "resumed": resumed}))
    precision = {"precision": "nvfp4", "engine": "emulated", "parameters_quantised": 0.625, "notes": ["a note"]}
    (made / "precision.json").write_text(json.dumps({**precision, "quantised": ["x"] * 100}))
    rows = [{**row, "sentinel/alarms": int(row["iteration"] == 2)} for row in metrics_rows(4)]
    (made / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parsed = report_of(made)
    alarms = parsed.words("log")
    assert "(guards.collapsed_spread) (2 times)" in alarms and "Resuming soon." in alarms
    assert "The sentinel saw something at 1 evaluation: iteration 2 (1)." in parsed.words()
    words = parsed.words()
    assert "worth having: best checkpoint by shapes_strict, 0.600: iteration 4 (diffrl export RUN --best )." in words
    rows = [{**row, "sentinel/alarms": int(row["iteration"] >= 3)} for row in metrics_rows(4)]
    (made / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "newest healthy: iteration 2 (diffrl export RUN --step 2 )." in report_of(made).words()
    where = parsed.words("environment")
    assert "Resumption 1: on the same machine and versions." in where
    assert "Resumption 2: device cuda (began with cpu), run.iterations 4 (was 2)." in where
    assert "nvfp4" in parsed.words("fidelity") and "62.5%" in parsed.words("fidelity")


def test_broken_and_missing_files_are_sentences(made):
    (made / "metrics.jsonl").write_text('{"iteration": 0, "held_out/shapes": 0.5}\nnonsense\n{"iteration": 2}\n')
    (made / "summary.json").write_text("[")
    (made / "environment.json").unlink()
    (made / "samples.sqlite").write_bytes(b"no index at all" * 99)
    for name in ("samples.sqlite-wal", "samples.sqlite-shm"):
        (made / name).unlink(missing_ok=True)
    (made / "config.yaml").write_text("run: [")
    parsed = report_of(made)
    assert_alone(parsed)
    assert "1 of the lines of metrics.jsonl is no row" in parsed.words() and "cannot be used" in parsed.words()
    assert "summary.json cannot be read" in parsed.words() and "environment" not in parsed.sections
    assert "There are no metrics to plot." in parsed.words("curves")
    assert "line 2 is not a row of metrics" in parsed.words("curves")


def test_a_run_without_evaluations_or_anything_else(tmp_path):
    run = tmp_path / "bare"
    run.mkdir()
    parsed = report_of(run)
    assert "written no metrics yet" in parsed.words() and "costs" not in parsed.sections
    write_metrics(run, 3)
    rows = [{k: v for k, v in row.items() if not k.startswith("held_out")} for row in metrics_rows(3)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    add_evaluation(run, 0)
    parsed = report_of(run)
    assert_alone(parsed)
    assert "bare has only evaluation 0 so far: there is nothing to compare it with" in parsed.words()
    assert len(parsed.images) == 6 and "So far" in parsed.words("pairs")
    assert "svg" in parsed.tags


def test_the_gallery_shows_the_same_file_and_offers_it(made, client_of):
    client = client_of(made)
    shown = client.get("/report", params={"run": "made"})
    assert shown.status_code == 200 and "content-disposition" not in shown.headers
    page = client.get("/run?run=made").text
    assert 'href="/report?run=made"' in page
    address = re.search(r'href="(/report\?[^"]*download=1)"', page)[1].replace("&amp;", "&")
    file = client.get(address)
    assert file.headers["content-disposition"] == 'attachment; filename="report-made.html"'
    assert_alone(Parsed(file.text))
    assert file.text == shown.text
    assert not (made / "report.html").exists()  # it only reads


def test_the_exported_site_has_it_beside_the_other_pages(made):
    site = Site(find_sources([made]), StaticLinks(lambda *picture: "media/x.webp"))
    assert "download" not in site.answer("run", Query({"run": ["made"]})).body
    (query,) = (query for _, name, query in site.links.pending if name == "report")
    assert_alone(Parsed(site.answer("report", query).body))


@pytest.mark.parametrize("summary", [{"seconds": {"rollout": "x"}, "counts": {}}, {"seconds": 3}, {"counts": []}])
def test_a_summary_by_another_hand_does_not_break_the_costs(summary):
    assert costs_of(summary, Track("r", "r")).phases == []
