"""Hostile texts stay texts on every page, and broken runs give messages: no script runs, no 500, no traceback."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from diffrl.gallery import answers
from diffrl.gallery.answers import answered
from diffrl.gallery.app import make_app
from diffrl.gallery.links import ServerLinks
from diffrl.gallery.query import Query
from diffrl.gallery.site import PAGES, Site
from diffrl.gallery.sources import find_sources
from diffrl.tracking.index import connect
from diffrl.tracking.store import SampleStore
from tests.gallery import made_trees
from tests.gallery.made import eval_sample, flat, make_run

HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>",
    "\"><svg onload=window.hacked=3> ' onmouseover='window.hacked=4' {{ 7*7 }} {% raw %}",
    "</script><script>window.hacked=5</script></title></textarea></style><!-- ]]> \u2028 \\u003c " + "long " * 2000,
)
NAME = "<img src=x onerror=window.hacked=6>"
SINGLE = {"tree": {"tree": "000020-3"}, "preferences.parquet": None, "state": {}}
"""Pages that need more than a run; None is one that a test of its own has (it needs pyarrow)."""
BODIES = ("a", "../..", "-1", "nan", "inf", "made@eval-4", "@", "<b>", "%", "000020-3/..", "💥", "\0")
BODIES += ("9" * 40, "a" * 3000)
BODIES += ("9" * 5000 + "-1", "000020-" + "9" * 5000)
HUGE = "1" + "0" * 400
"""A whole number beyond all floats, which JSON may hold."""
DEEP = "[" * 100_000

SLOW = ("report",)
"""Pages that draw figures, seconds each: only slow tests break everything for them."""


def hostile_run(path: Path) -> Path:
    """A run in which every text that comes from outside tries to become a script."""
    run = make_run(path, prompts=HOSTILE)
    rewards = {NAME: 0.5, f"{NAME}/part": 0.25, "shapes": 0.5}
    with SampleStore(run) as store:
        for iteration in (0, 4):
            more = {"rewards": rewards, "metadata": {NAME: HOSTILE[2], "link": "javascript:window.hacked=7"}}
            store.write(
                [
                    eval_sample(iteration, 0, 0, HOSTILE[0], 0.5, flat(0.3), **more),
                    eval_sample(iteration, 1, 0, HOSTILE[1], None, None, error=HOSTILE[0], rewards={NAME: None}),
                ]
            )
    rows = [{"iteration": i, f"reward/{NAME}": 0.5, f"held_out/{NAME}": 0.1 * i, NAME: i} for i in range(5)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "config.yaml").write_text(
        f"run: {{name: {json.dumps(NAME)}, iterations: 4}}\nmodel: {json.dumps(HOSTILE[2])}\n"
    )
    (run / "environment.json").write_text(json.dumps({"device": NAME, "versions": {NAME: HOSTILE[0]}}))
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "device": HOSTILE[0], "held_out": {NAME: 0.5}}))
    (run / "log.txt").write_text("\n".join(HOSTILE) + "\n")
    rule = {**made_trees.DIFFRL, "value": NAME}
    made_trees.write(run, made_trees.forest(prompt=HOSTILE[0], metadata={NAME: HOSTILE[2]}, rule=rule))
    return run


def addresses(key: str) -> list[str]:
    """Every page of a run."""
    found = ["/"]
    for name in PAGES:
        more = SINGLE.get(name, {})
        if name != "home" and more is not None:
            found.append(f"/{name}?run={quote(key)}" + "".join(f"&{a}={b}" for a, b in more.items()))
    return found


@pytest.mark.browser
@pytest.mark.long
def test_hostile_texts_stay_texts_on_every_page(served, strict_page, tmp_path):
    page = strict_page
    run = hostile_run(tmp_path / "runs" / NAME.replace("/", ""))
    make_run(tmp_path / "runs" / "other")
    address = served(tmp_path / "runs")
    key = page.request.get(f"{address}/state").json()
    key = next(name for name in key if name != "other")
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    seen = 0
    extra = [
        f"/compare?run={key}&prompt={quote(HOSTILE[1])}",
        f"/{quote(NAME)}",
    ]
    extra += [f"/compare?run={key}&reward={quote(NAME)}", f"/vote?run={key}", f"/run?run={quote(HOSTILE[1])}"]
    for path in [*addresses(key), *extra]:
        answer = page.request.get(address + path)
        kind = answer.headers["content-type"]
        assert "default-src 'self'" in answer.headers["content-security-policy"], path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.status != 500, (path, answer.text()[-500:])
        if "html" not in kind and "svg" not in kind or "content-disposition" in answer.headers:
            continue
        page.goto(address + path)
        assert page.evaluate("window.hacked") is None, path
        # The policy would stop them; but nothing may be there that it has to stop.
        assert (
            page.locator("[onerror], [onload], [onmouseover], [onclick], [href^='javascript:'], [src='x']").count() == 0
        )
        assert page.locator("script:not([src]):not([type='application/json'])").count() == 0, path
        for block in page.locator("script[type='application/json']").all_text_contents():
            json.loads(block)
        seen += HOSTILE[0] in page.locator("body").text_content()
    assert seen >= 4 and asked == []
    assert run.is_dir()


def document(change):
    """The document of a tree after a change."""
    data = json.loads(json.dumps({"format": 1, **asdict(made_trees.forest())}))
    change(data)
    return data


def broken():
    """Ways in which a run can be broken, by name."""

    def index(data: bytes):
        return lambda run: (run / "samples.sqlite").write_bytes(data)

    def cut(run):
        data = (run / "samples.sqlite").read_bytes()
        (run / "samples.sqlite").write_bytes(data[: len(data) // 2])

    def torn(run):
        data = bytearray((run / "samples.sqlite").read_bytes())
        data[4096:] = random.Random(0).randbytes(len(data) - 4096)
        (run / "samples.sqlite").write_bytes(data)

    def version(run):
        database = connect(run, readonly=False)
        database.execute("PRAGMA user_version = 99")
        database.close()

    def values(run):
        database = connect(run, readonly=False)
        for change in ("total = 'x'", "metadata = '[1'", "picture = '../../x.png'", "path = 'a.b'", "prompt = x'ff00'"):
            database.execute(f"UPDATE samples SET {change} WHERE id % 2")
        database.execute("UPDATE rewards SET raw = 'y' WHERE sample_id % 3 = 0")
        database.close()

    def blobs(run):
        database = connect(run, readonly=False)
        database.execute("UPDATE samples SET stage = x'00ff' WHERE id % 5 = 0")
        database.execute("UPDATE reward_names SET name = x'00ff' WHERE name = 'shapes'")
        database.close()

    def text(name: str, content: str | bytes):
        return lambda run: (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    ways = {
        "no index": lambda run: (run / "samples.sqlite").unlink(),
        "empty index": index(b""),
        "random index": index(random.Random(1).randbytes(20_000)),
        "cut index": cut,
        "torn index": torn,
        "other version": version,
        "wrong values": values,
        "blobs as names": blobs,
        "no images": lambda run: shutil.rmtree(run / "samples"),
        "an index that is a folder": lambda run: ((run / "samples.sqlite").unlink(), (run / "samples.sqlite").mkdir()),
        "torn metrics": text("metrics.jsonl", '{"iteration": 1, "reward/mean": 0.5}\n{"iter'),
        "metrics with rubbish": text(
            "metrics.jsonl", b'{"iteration": 1}\n\xff\xfe\n[1]\n{"iteration": "x", "reward/mean": {}}\n'
        ),
        "metrics of other shapes": text(
            "metrics.jsonl", '{"reward/mean": "high"}\n{"iteration": null}\n{"iteration": 3.5}\n'
        ),
        "huge numbers": text("metrics.jsonl", '{"iteration": 1, "reward/mean": 1e999, "held_out/a": -1e308}\n' * 3),
        "numbers beyond all floats": text(
            "metrics.jsonl",
            f'{{"iteration": 1, "reward/mean": {HUGE}, "held_out/a": {HUGE}, "update/loss": -{HUGE}}}\n'
            f'{{"iteration": {HUGE}, "held_out/a": 1, "cost/seconds": {HUGE}}}\n' * 3,
        ),
        "deep metrics": text("metrics.jsonl", f'{{"iteration": 1, "held_out/a": 1}}\n{{"held_out/a": {DEEP}\n' * 2),
        "no metrics": lambda run: (run / "metrics.jsonl").unlink(),
        "a list as summary": text("summary.json", "[]"),
        "a summary of other shapes": text(
            "summary.json", '{"held_out": 3, "seconds": [], "versions": null, "counts": "x"}'
        ),
        "a summary beyond all floats": text(
            "summary.json",
            f'{{"seconds": {{"rollout": {HUGE}}}, "counts": {{"decodes": {HUGE}}}, "cost": {{"evaluations": {HUGE}}}, '
            f'"updates": {HUGE}, "peak_memory_bytes": {HUGE}}}',
        ),
        "rubbish as summary": text("summary.json", "{"),
        "a deep summary": text("summary.json", DEEP),
        "rubbish as environment": text("environment.json", b"\x00\xff"),
        "a deep environment": text("environment.json", DEEP),
        "an environment of many levels": text("environment.json", '{"a":' * 900 + "1" + "}" * 900),
        "a deep precision": text("precision.json", DEEP),
        "a precision beyond all floats": text("precision.json", f'{{"flops_quantised": {HUGE}, "engine": [[{HUGE}]]}}'),
        "rubbish as configuration": text("config.yaml", b"a: [\xff\n\tb: {"),
        "another configuration": text("config.yaml", "- 1\n- !!python/object:os.system {}\n"),
        "a deep configuration": text("config.yaml", "[" * 1000),
        "a configuration beyond all floats": text("config.yaml", f"run: {{iterations: {HUGE}}}"),
        "a tree that is cut": text("trees/000020-3/tree.json", '{"format": 1, "nodes": [{"id"'),
        "a tree of other shapes": text("trees/000020-3/tree.json", '{"format": 1, "nodes": 3, "branching": []}'),
        "a tree of steps that are not": text(
            "trees/000020-3/tree.json", json.dumps(document(lambda tree: tree["nodes"][1].update(step=99)))
        ),
        "a tree beyond all floats": text(
            "trees/000020-3/tree.json", json.dumps(document(lambda tree: tree["nodes"][0].update(value=int(HUGE))))
        ),
        "a tree without images": lambda run: [path.unlink() for path in (run / "trees").rglob("*.webp")],
        "rubbish as log": text("log.txt", b"\xff\xfe\x00" * 100),
        "a log that is a folder": lambda run: (run / "log.txt").mkdir(),
        "nothing at all": lambda run: shutil.rmtree(run),
    }
    return ways


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with everything, to be copied and broken."""
    run = make_run(tmp_path_factory.mktemp("whole") / "made")
    made_trees.write(run, made_trees.forest())
    return run


@pytest.fixture(scope="module")
def breakable(whole, tmp_path_factory):
    """A client of a gallery with a run to be broken and another, the place of the former, and the gallery's site."""
    runs = tmp_path_factory.mktemp("runs")
    shutil.copytree(whole, runs / "made")
    make_run(runs / "other", iterations=2)
    site = Site(find_sources([runs]), ServerLinks("test"), {"votes": runs / "votes.jsonl"})
    return TestClient(make_app(site), base_url="http://127.0.0.1"), runs / "made", site


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["pages", "figures"])
@pytest.mark.parametrize("way", broken())
@pytest.mark.long
def test_a_broken_run_is_told_on_its_pages(breakable, whole, monkeypatch, caplog, capfd, way, slow):
    monkeypatch.setattr(answers, "_noted", set())
    client, run, site = breakable
    site.reports.clear()
    site.tables.clear()
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run)
    broken()[way](run)
    more = ["/compare?columns=made@eval-0&columns=made@eval-4", "/curves"]
    for path in [*addresses("made"), *more]:
        if (path.partition("?")[0][1:] in SLOW) is not slow:
            continue
        answer = client.get(path)
        assert answer.status_code in (200, 400, 404, 503), (path, answer.status_code, answer.text[-300:])
        if answer.status_code != 200:
            assert 'role="alert"' in answer.text
    assert not caplog.records and "Traceback" not in capfd.readouterr().err
    assert client.get("/run?run=other").status_code == 200  # the others are as they were


class Asked(dict):
    """Parameters of a page, which notes the names that the page looks for."""

    def __init__(self, values):
        super().__init__(values)
        self.names: set[str] = set()

    def get(self, name, default=None):
        self.names.add(name)
        return super().get(name, default)


def test_no_parameter_of_any_page_is_trusted(site_of, whole, monkeypatch, caplog):
    """Every parameter that a page looks for gets every body; those that it looks for only then are found by that."""
    monkeypatch.setattr(answers, "_noted", set())
    site, tried = site_of(whole), set()
    for name in PAGES:
        if name == "preferences.parquet" or name in SLOW:
            continue
        first = Asked({"run": ["made"], "tree": ["000020-3"]})
        answered(site, name, Query(first))
        waiting, seen = sorted(first.names), set(first.names)
        while waiting:
            parameter = waiting.pop()
            for body in BODIES:
                values = Asked({"run": ["made"], "tree": ["000020-3"], parameter: [body]})
                answer = answered(site, name, Query(values))
                assert answer.status in (200, 302, 303, 400, 404), (name, parameter, body[:40], answer.body[-300:])
                waiting += sorted(values.names - seen)
                seen |= values.names
            tried.add((name, parameter))
    assert {("tree", "tree"), ("compare", "columns"), ("compare", "sort"), ("curves", "x"), ("votes", "a")} <= tried
    assert not caplog.records


def test_no_page_reads_outside_its_run(client_of, whole, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "tree.json").write_text((whole / "trees" / "000020-3" / "tree.json").read_text())
    run = tmp_path / "runs" / "made"
    shutil.copytree(whole, run)
    client = client_of(run)
    for tree in (
        "../../secret",
        "../../../secret",
        quote(str(tmp_path / "secret"), safe=""),
        "000020-3/../../../secret",
    ):
        assert client.get(f"/tree?run=made&tree={tree}").status_code in (400, 404)
    for name in ("run", "compare", "curves", "report", "trees"):
        for other in ("..", "../made", str(run), "made/..", "."):
            assert client.get(f"/{name}?run={quote(other, safe='')}").status_code == 404, (name, other)


class Attributes(HTMLParser):
    """All attributes of a page, as a browser sees them."""

    def __init__(self, text):
        super().__init__()
        self.found: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found += attrs


def test_hostile_names_of_pictures_are_not_followed(client_of, made):
    name = 'samples/../config.yaml#x.png" onerror="a'
    database = connect(made, readonly=False)
    database.execute("UPDATE samples SET picture = ?", (name,))
    database.close()
    client = client_of(made)
    found = Attributes(client.get("/compare?columns=made@eval-4").text).found
    assert not [attribute for attribute, _ in found if attribute.startswith("on")]
    media = [value for attribute, value in found if attribute in ("src", "data-full") and "/media/" in (value or "")]
    assert len(media) >= 6
    for address in [*media, "/media/made/samples/%2e%2e/config.yaml", "/media/made/config.yaml"]:
        answer = client.get(address)
        assert answer.status_code == 404 and "run: {name" not in answer.text, address
