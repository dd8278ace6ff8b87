"""Curves: what stands on one axis, gaps, thinning, and the files that are downloaded."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from xml.etree import ElementTree

import pytest

from diffrl.gallery.curves import csv_of, lines_of, page_data, points_of, thin
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.panels import panels_of
from diffrl.gallery.plots import inline, panel_svg
from diffrl.gallery.query import Query
from diffrl.gallery.runs import RunSource
from diffrl.gallery.series import track_of
from diffrl.gallery.site import Site
from diffrl.gallery.sources import find_sources
from diffrl.gallery.static_links import StaticLinks
from tests.gallery.made import keep_columns, make_run, metrics_rows, write_metrics

SVG = "{http://www.w3.org/2000/svg}"


def track_from(folder, rows):
    """The track of a run with these rows."""
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return track_of(RunSource("r", folder))


def data_of(page):
    return json.loads(re.search(r'id="curves-data">(.*?)</script>', page.text, re.DOTALL)[1])


def texts(svg):
    return ["".join(node.itertext()).strip() for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


# --- files -----------------------------------------------------------------------------------------------------------


def test_the_csv_holds_every_number_of_every_row(made, client_of):
    answer = client_of(made).get("/curves.csv", params={"run": "made"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="curves-made.csv"'
    rows, expected = read_csv(answer.text), metrics_rows(4)
    assert len(rows) == len(expected) == 5
    for found, row in zip(rows, expected, strict=True):
        assert found.pop("run") == "made"
        assert {name: float(value) for name, value in found.items() if value} == row


def test_text_that_a_spreadsheet_would_run_stays_text():
    rows = [{"iteration": 1, "=HYPERLINK(1)": -2.5, "note": "@SUM(A1)", "also": "+1", "fine": 'a,b\n"c"'}]
    header, row = csv.reader(io.StringIO(csv_of([("-run", rows)]), newline=""))
    assert row[0] == "'-run"
    assert dict(zip(header, row, strict=True)) | {"run": ""} == {
        "run": "", "iteration": "1", "cost/evaluations": "", "cost/seconds": "",
        "'=HYPERLINK(1)": "-2.5", "note": "'@SUM(A1)", "also": "'+1", "fine": "a,b\n\"c\"",
    }  # fmt: skip


def test_a_run_has_one_colour_on_every_page(tmp_path, client_of):
    names = ["b-run", "a-run", "c-run"]
    client = client_of(*(make_run(tmp_path / name, iterations=2) for name in names))
    alone = {name: data_of(client.get("/curves", params={"run": [name, "c-run"]})) for name in names[:2]}
    drawn = [{line["label"]: line["colour"] for line in data["panels"][0]["lines"]} for data in alone.values()]
    assert drawn == [{"b-run": 1, "c-run": 2}, {"a-run": 0, "c-run": 2}], "whichever others are shown"
    for address in ("/", "/compare"):
        found = re.findall(r"--series-(\d)\)\"></i> (?:<a [^>]*>)?(\w-run)", client.get(address).text)
        assert sorted((name, int(colour)) for colour, name in found) == [("a-run", 0), ("b-run", 1), ("c-run", 2)]


def strokes(svg):
    """The number of points in each piece of each thick line of a drawing."""
    paths = [
        node.get("d") for node in ElementTree.fromstring(svg).iter(f"{SVG}path") if "1.5" in (node.get("style") or "")
    ]
    return [[piece.count("L") + 1 for piece in path.split("M")[1:]] for path in paths]


def test_a_null_is_a_gap_in_the_drawing(tmp_path):
    rows = [{"iteration": i, "update/loss": None if i == 3 else 0.5 * i} for i in range(1, 8)]
    panel = panels_of(["update/loss"])[0]
    assert strokes(panel_svg(panel, track_from(tmp_path, rows))) == [[2, 4]]


OTHERS = [{"after_iteration": 2, "inputs": ["prompts.eval", "rewards.shapes"]}]


def mixed(run, finished: bool):
    """Write that a run went on with other inputs, as one that has ended does and as one that still trains."""
    if finished:
        path, entry = run / "summary.json", {"input_changes": OTHERS}
    else:
        (run / "summary.json").unlink()
        digests = {name: {"was": "1", "is": "2"} for name in [*OTHERS[0]["inputs"], "run.iterations"]}
        path, entry = run / "environment.json", {"resumed": [{}, {"changed": {"after_iteration": 2, **digests}}]}
    path.write_text(json.dumps(json.loads(path.read_text()) | entry))
    return run


@pytest.mark.parametrize("finished", [True, False])
def test_where_a_run_went_on_with_other_inputs_is_marked_and_said(tmp_path, client_of, finished):
    one, two = (keep_columns(make_run(tmp_path / name), "cost/seconds", "reward/mean") for name in ("one", "two"))
    client = client_of(mixed(one, finished), two)
    words = "After iteration 2, other inputs: prompts.eval, rewards.shapes."
    for page in ("/", "/run?run=one", "/curves", "/report?run=one"):
        assert words in client.get(page).text, page
    assert words not in client.get("/run?run=two").text
    assert data_of(client.get("/curves"))["changes"] == [[2], []]
    marked, plain = (panel_svg(panels_of(["reward/mean"])[0], track_of(RunSource(run.name, run))) for run in (one, two))
    assert texts(marked).count("other inputs") == 1 and "other inputs" not in texts(plain)
    (line,) = vertical(marked)
    assert line == pytest.approx(at_tick(marked, 2), abs=0.5)


@pytest.mark.parametrize("damage", [[], {"input_changes": [3, {"after_iteration": "x"}, {"after_iteration": 2}]}])
def test_changes_that_are_none_are_left_out(made, client_of, damage):
    (made / "summary.json").write_text(json.dumps(damage))
    assert "other inputs" not in client_of(made).get("/curves").text


def vertical(svg):
    """Places of the dashed vertical lines of a drawing, in points."""
    found = re.findall(r'<path d="M ([\d.]+) [\d.]+\s+L ([\d.]+) [\d.]+\s*"[^>]*stroke-dasharray', svg)
    return [float(one) for one, other in found if one == other]


def at_tick(svg, value):
    """Where a value of the horizontal axis stands, from its ticks."""
    ticks = re.findall(r'id="xtick_\d+">.*?<use [^>]*x="([\d.]+)".*?<text[^>]*>([\d.]+)</text>', svg, re.S)
    (a, first), *_, (b, last) = [(float(place), float(label)) for place, label in ticks]
    return a + (value - first) / (last - first) * (b - a)


def test_inline_drawings_stand_alone_and_follow_the_theme(tmp_path):
    track = track_from(tmp_path, [{"iteration": i, "reward/std": i * 0.1} for i in range(5)])
    svg = inline(panel_svg(panels_of(["reward/std"])[0], track), "p7")
    root = ElementTree.fromstring(svg)
    ids = {node.get("id") for node in root.iter() if node.get("id")}
    assert ids and all(one.startswith("p7-") for one in ids)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg))
    assert used and used <= ids
    assert "http" not in svg and "<style" not in svg and "var(--ink)" in svg and "var(--series-0)" in svg
    assert root.get("width") is None and root.get("height") is None and root.get("viewBox")


def with_none(points):
    return [None if math.isnan(value) else value for _, value in points]


# --- data ------------------------------------------------------------------------------------------------------------


def test_thinning_keeps_extremes_ends_gaps_and_order():
    chance = random.Random(0)
    points = [(i, chance.gauss(0, 1)) for i in range(50_000)]
    points[31_234], points[777], points[40_001] = (31_234, 99.0), (777, -99.0), (40_001, math.nan)
    kept = thin(points, 2000)
    assert len(kept) <= 2000 and kept == sorted(kept, key=lambda point: point[0]) and set(kept) <= set(points)
    assert {points[0], points[-1], points[31_234], points[777], points[40_001]} <= set(kept)
    for start in range(0, 50_000, 5000):  # whatever the part, its highest point is there
        part = [point for point in points[start : start + 5000] if not math.isnan(point[1])]
        assert max(part, key=lambda point: point[1]) in kept and min(part, key=lambda point: point[1]) in kept
    assert thin(points[:2000], 2000) == points[:2000]


def test_nulls_and_missing_values_are_gaps_but_not_between_evaluations(tmp_path):
    rows = [
        {"iteration": 0, "held_out/a": 1.0},
        {"iteration": 1, "reward/a": 0.1},
        {"iteration": 2, "reward/a": None, "held_out/a": None},
        {"iteration": 3},
        {"iteration": 4, "reward/a": 0.4},
        {"iteration": 5, "reward/a": float("nan"), "held_out/a": 3.0},
        {"iteration": 6, "reward/a": True},
    ]
    track = track_from(tmp_path, rows)
    assert with_none(points_of(track, "held_out/a")) == [1.0, None, 3.0]
    assert with_none(points_of(track, "reward/a")) == [0.1, None, 0.4]
    assert [row for row, _ in points_of(track, "reward/a")] == [1, 2, 4]
    (panel,) = panels_of(["held_out/a"])
    data = page_data([panel], {panel.id: lines_of(panel, [track])}, [track], "iteration")
    assert data["panels"][0]["lines"][0]["y"] == [1, None, 3]


def test_a_long_run_is_thinned_on_the_page_but_not_in_its_csv(tmp_path, client_of):
    write_metrics(tmp_path / "long", 6000)
    (tmp_path / "long" / "config.yaml").write_text("run: {iterations: 6000}")
    (tmp_path / "long" / "environment.json").write_text("{}")
    client = client_of(tmp_path / "long")
    page = client.get("/curves")
    data = data_of(page)
    lengths = {panel["id"]: len(panel["lines"][0]["at"]) for panel in data["panels"]}
    assert data["thinned"] == 2000 and lengths["ratio"] <= 2000 and lengths["ratio"] > 1000
    assert "thinned to 2000 points" in page.text
    assert len(read_csv(client.get("/curves.csv").text)) == 6001


def test_no_axis_has_two_rewards_or_two_units(tmp_path):
    columns = [name for row in metrics_rows(3) for name in row]
    columns += [
        "held_out/shapes/count",
        "held_out/other",
        "reward/other",
        "fidelity/rho",
        "update/grad_norm",
        "new/one",
    ]
    panels = panels_of(dict.fromkeys(columns))
    rewards = [panel for panel in panels if any(c.startswith(("held_out/", "reward/")) for c in panel.columns)]
    assert all(len(panel.columns) == 1 for panel in rewards)
    of = {column: panel for panel in panels for column in panel.columns}
    assert of["fidelity/tau"] is of["fidelity/rho"] is not of["fidelity/top_match"]
    assert of["update/ratio"] is not of["update/clipped"] and of["seconds/rollout"] is of["seconds/update"]
    assert of["held_out/shapes/count"].fold == "Parts of shapes" and not of["held_out/shapes"].fold
    assert of["reward/mean"].band == "reward/std" and of["new/one"].fold
    assert set(columns) - set(of) == {"iteration", "cost/evaluations", "cost/seconds"}
    crowded = panels_of(dict.fromkeys(columns), runs=5)
    assert not any("seconds/rollout" in panel.columns and len(panel.columns) > 1 for panel in crowded)


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_has_panels_of_what_there_is_and_all_three_axes(made, client_of):
    page = client_of(made).get("/curves", params={"x": "seconds"})
    data = data_of(page)
    assert data["x"] == "seconds" and set(data["axes"]) == {"iteration", "evaluations", "seconds"}
    assert data["axes"]["evaluations"] == [[0, 1000, 2000, 3000, 4000]] and data["axes"]["seconds"][0][1] == 0.75
    by_id = {panel["id"]: panel for panel in data["panels"]}
    assert by_id["held_out/shapes"]["lines"][0]["y"] == [0.5, 0.6, 0.7] and by_id["held_out/shapes"]["marks"]
    assert by_id["reward"]["lines"][0]["band"] == [0.3] * 4 and "memory" not in by_id
    numbers = re.findall(r'data-panel="held_out/shapes".*?<tbody>(.*?)</tbody>', page.text, re.DOTALL)[0]
    assert re.sub(r"<[^>]+>", " ", numbers).split() == ["shapes", "0.5", "0.7", "0.5", "0.7", "3"]
    assert page.text.count("Held-out rewards") >= 1


def test_an_unknown_panel_is_not_found(made, client_of):
    answer = client_of(made).get("/curves.csv", params={"panel": "<script>"})
    assert answer.status_code == 404 and "<script>" not in answer.text.partition("<main")[2].partition("</main>")[0]


def test_runs_without_readable_metrics_say_so_beside_the_others(tmp_path, client_of):
    make_run(tmp_path / "good", iterations=2)
    for name, content in (("empty", ""), ("none", None), ("broken", '{"iteration": 0}\nnonsense\n{"iteration": 1}\n')):
        run = make_run(tmp_path / name, iterations=2)
        (run / "metrics.jsonl").unlink()
        if content is not None:
            (run / "metrics.jsonl").write_text(content)
    with (tmp_path / "good" / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 3, "reward/mea')  # a row that is being written
    client = client_of(tmp_path / "good", tmp_path / "empty", tmp_path / "none", tmp_path / "broken")
    page = client.get("/curves")
    assert page.status_code == 200 and page.text.count("It has written no metrics yet.") == 2
    assert "line 2 is not a row of metrics" in page.text
    assert len(data_of(page)["axes"]["iteration"][0]) == 3
    alone = client.get("/curves", params={"run": "none"})
    assert alone.status_code == 200 and "There are no curves yet" in alone.text
    assert client.get("/curves.csv", params={"run": "none"}).text == "run,iteration,cost/evaluations,cost/seconds\r\n"


def test_the_exported_page_needs_no_server(made, tmp_path):
    links = StaticLinks(lambda *picture: "media/x.webp")
    keep_columns(made, "held_out/shapes", "update/loss", "cost/seconds")
    site = Site(find_sources([made]), links)
    page = site.answer("curves", Query({"run": ["made"]})).body
    assert "Show</button>" not in page and '"seconds": [[0' in page
    addresses = re.findall(r'(?:href|src|action)="([^"]*)"', page)
    assert addresses and not [one for one in addresses if one.startswith("/") or "?" in one]
    written = {(name, query.text("panel")): query for _, name, query in links.pending if name.startswith("curves.")}
    assert list(written) == [("curves.csv", "")]
    assert all(site.answer(name, query).status == 200 for (name, _), query in written.items())


def test_changed_metrics_are_read_again(made):
    run = RunSource("made", made)
    assert track_of(run).count == 5
    rows = [json.dumps(row).encode() + b"\n" for row in metrics_rows(9)]
    with (made / "metrics.jsonl").open("ab") as file:  # as a run appends: whole lines, and one that is being written
        file.write(rows[5] + rows[6] + rows[7][:30])
        file.flush()
        assert track_of(run).count == 7
        file.write(rows[7][30:] + rows[8])
        file.flush()
    grown = track_of(run)
    assert grown.along("iteration") == list(range(9)) and grown.along("held_out/shapes")[8] == 0.5 + 0.05 * 8
    with (made / "metrics.jsonl").open("ab") as file:
        file.write(b'{"iteration": 9, "re\n')  # cut short by a kill
    assert track_of(run).count == 9 and not track_of(run).problem
    replaced = made / "new.jsonl"  # as a run that resumes drops rows
    replaced.write_bytes(b"".join(rows[:2]) + json.dumps({**metrics_rows(2)[2], "note": 9999 * "x"}).encode() + b"\n")
    replaced.replace(made / "metrics.jsonl")
    assert track_of(run).along("iteration") == [0, 1, 2] and track_of(run).along("held_out/shapes")[1] is None


@pytest.mark.parametrize("other", [[0.9, 0.1, 0.1, 0.1, 0.1], [0.1, 0.9, 0.9, 0.9, 0.9]])
def test_another_file_under_the_same_number_is_read_anew(tmp_path, other):
    """A disk gives the number of a deleted file to the next one; the other begins, or only goes on, differently."""
    run, path = RunSource("r", tmp_path), tmp_path / "metrics.jsonl"
    for count, rewards in enumerate(([0.1] * 3, other)):
        between = {"note": "x" * 5000}  # what is first and what is last is far from each other
        rows = [json.dumps({"reward/mean": v, **between, "reward/std": v}) + "\n" for v in rewards]
        number = path.stat().st_ino if count else None
        with path.open("r+b" if count else "wb") as file:  # in place: the same number, whatever the disk
            file.truncate(0)
            file.write("".join(rows).encode())
        assert track_of(run).along("reward/mean") == rewards
        assert number in (None, path.stat().st_ino)


def test_only_folders_have_no_curves(tmp_path, site_of):
    from PIL import Image

    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / "a.png")
    with pytest.raises(GalleryError, match="only folders of images"):
        site_of(tmp_path / "pictures").answer("curves", Query())


def test_the_best_evaluation_and_the_newest_healthy_one_are_marked(tmp_path, client_of):
    """Where a run's last evaluations are ailing; another run's are its own."""
    bad, good = (make_run(tmp_path / name, iterations=4) for name in ("bad", "good"))
    scores = {0: (0.5, 0), 2: (0.7, 0), 3: (0.6, 0), 4: (0.1, 1)}
    rows = [
        {"iteration": at, "held_out/shapes": score, "sentinel/alarms": alarms} for at, (score, alarms) in scores.items()
    ]
    (bad / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = data_of(client_of(bad, good).get("/curves"))
    assert data["marks"][0] == [[1, "best checkpoint"], [2, "newest healthy"]]
    assert "best 0.700 after iteration 2" in client_of(bad).get("/run").text
    assert [words for _, words in data["marks"][1]] == ["best checkpoint"]
    found = client_of(bad).get("/evaluations.json", params={"run": "bad", "block": 0}).json()["labels"]
    assert found[0] == "evaluation 0" and "evaluation 2, best checkpoint" in found and found[-1] == "evaluation 4"


def test_a_held_out_mean_is_drawn_with_its_interval():
    names = ("held_out/a", "held_out/a/part", "held_out_interval/a", "reward/mean")
    panels = {panel.id: panel for panel in panels_of(names)}
    assert panels["held_out/a"].band == "held_out_interval/a" and "interval" in panels["held_out/a"].note
    assert panels["held_out/a/part"].band is None and "held_out_interval/a" not in panels
    assert panels_of(names[:1])[0].band is None, "of older runs"
