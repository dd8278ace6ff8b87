"""Hostile texts stay texts on every page, and broken runs give messages: no script runs, no 500, no traceback."""

from __future__ import annotations

import html
import json
import random
import re
import shutil
from dataclasses import asdict, replace
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
from tests.gallery.made import Elements, eval_sample, flat, make_run

HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>",
    "\"><svg onload=window.hacked=3> ' onmouseover='window.hacked=4' {{ 7*7 }} {% raw %}",
    "</script><script>window.hacked=5</script></title></textarea></style><!-- ]]> \u2028 \\u003c " + "long " * 2000,
)
NAME = "<img src=x onerror=window.hacked=6>"
SINGLE = {"tree": {"tree": "000020-3"}, "preferences.parquet": None, "state": {}}
"""Pages that need more than a run; None is one that a test of its own has (it needs pyarrow)."""
BODIES = ("../..", "-1", "nan", "made@eval-4", "@", "000020-3/..", "💥\0", "a" * 3000, "9" * 5000 + "-1")
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
    tree = made_trees.forest(prompt=HOSTILE[0], metadata={NAME: HOSTILE[2]}, rule=rule)
    failed = replace(tree.nodes[-1], leaf=made_trees.leaf(None, error=HOSTILE[2], rewards={NAME: 1.0}))
    made_trees.write(run, replace(tree, nodes=[*tree.nodes[:-1], failed]))
    return run


def addresses(key: str) -> list[str]:
    """Every page of a run."""
    found = ["/"]
    for name in PAGES:
        more = SINGLE.get(name, {})
        if name != "home" and more is not None:
            found.append(f"/{name}?run={quote(key)}" + "".join(f"&{a}={b}" for a, b in more.items()))
    return found


@pytest.fixture
def hostile(tmp_path):
    """A hostile run beside another, and addresses of its pages."""
    hostile_run(tmp_path / "runs" / NAME.replace("/", ""))
    make_run(tmp_path / "runs" / "other")
    (key,) = [source.key for source in find_sources([tmp_path / "runs"]) if source.key != "other"]
    more = [f"/compare?run={key}&prompt={quote(HOSTILE[1])}", f"/{quote(NAME)}", f"/vote?run={key}"]
    more += [f"/compare?run={key}&reward={quote(NAME)}", f"/run?run={quote(HOSTILE[1])}", f"/vote?voter={quote(NAME)}"]
    return tmp_path / "runs", [*addresses(key), *more]


def test_hostile_texts_stay_texts_on_every_page(client_of, hostile):
    """Nothing may be there that the policy has to stop."""
    runs, paths = hostile
    client, seen = client_of(runs), 0
    for path in paths:
        answer = client.get(path)
        assert "default-src 'self'" in answer.headers["content-security-policy"], path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.status_code != 500, (path, answer.text[-500:])
        if "html" not in answer.headers["content-type"]:
            continue
        page = Elements(answer.text)
        for tag, attributes in page.found:
            addresses = [attributes[name] or "" for name in ("href", "src", "action", "srcset") if name in attributes]
            assert not [name for name in attributes if name.startswith("on")], (path, tag, attributes)
            assert not [one for one in addresses if one == "x" or one.startswith(("javascript:", "http"))], path
            assert tag != "script" or "src" in attributes or attributes.get("type") == "application/json", path
            assert tag not in ("iframe", "object", "embed", "base"), path
        for block in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', answer.text, re.S):
            json.loads(block)
        seen += html.escape(HOSTILE[0])[:30] in answer.text
    assert seen >= 4


@pytest.mark.browser
@pytest.mark.long
def test_hostile_texts_stay_texts_in_what_scripts_draw(served, strict_page, hostile):
    runs, paths = hostile
    address, page, asked = served(runs), strict_page, []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    for path in paths:
        if path.partition("?")[0] in ("/compare", "/curves", "/tree", "/vote", "/"):
            page.goto(address + path)
            assert page.evaluate("window.hacked") is None, path
            made = "[onerror], [onload], [onmouseover], [onclick], [href^='javascript:'], [src='x']"
            assert page.locator(made).count() == 0, path
    assert asked == []


def document(change):
    """The document of a tree after a change."""
    data = json.loads(json.dumps({"format": 1, **asdict(made_trees.forest())}))
    change(data)
    return data


def broken():
    """Ways in which a run can be broken, by name."""

    def index(data: bytes):
        return lambda run: (run / "samples.sqlite").write_bytes(data)

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
        "empty index": index(b""),
        "torn index": torn,
        "other version": version,
        "wrong values": values,
        "blobs as names": blobs,
        "no images": lambda run: shutil.rmtree(run / "samples"),
        "an index that is a folder": lambda run: ((run / "samples.sqlite").unlink(), (run / "samples.sqlite").mkdir()),
        "metrics with rubbish": text(
            "metrics.jsonl", b'{"iteration": 1}\n\xff\xfe\n[1]\n{"iteration": "x", "reward/mean": {}}\n'
        ),
        "metrics of other shapes": text(
            "metrics.jsonl", '{"reward/mean": "high"}\n{"iteration": null}\n{"iteration": 3.5}\n'
        ),
        "numbers beyond all floats": text(
            "metrics.jsonl",
            f'{{"iteration": 1, "reward/mean": {HUGE}, "held_out/a": {HUGE}, "update/loss": -{HUGE}}}\n'
            f'{{"iteration": {HUGE}, "held_out/a": 1, "cost/seconds": {HUGE}}}\n' * 3,
        ),
        "deep metrics": text("metrics.jsonl", f'{{"iteration": 1, "held_out/a": 1}}\n{{"held_out/a": {DEEP}\n' * 2),
        "no metrics": lambda run: (run / "metrics.jsonl").unlink(),
        "a summary of other shapes": text(
            "summary.json", '{"held_out": 3, "seconds": [], "versions": null, "counts": "x"}'
        ),
        "a summary beyond all floats": text(
            "summary.json",
            f'{{"seconds": {{"rollout": {HUGE}}}, "counts": {{"decodes": {HUGE}}}, "cost": {{"evaluations": {HUGE}}}, '
            f'"updates": {HUGE}, "peak_memory_bytes": {HUGE}}}',
        ),
        "a deep summary": text("summary.json", DEEP),
        "rubbish as environment": text("environment.json", b"\x00\xff"),
        "an environment of many levels": text("environment.json", '{"a":' * 900 + "1" + "}" * 900),
        "a precision beyond all floats": text("precision.json", f'{{"flops_quantised": {HUGE}, "engine": [[{HUGE}]]}}'),
        "another configuration": text("config.yaml", "- 1\n- !!python/object:os.system {}\n"),
        "a deep configuration": text("config.yaml", "[" * 1000),
        "a configuration beyond all floats": text("config.yaml", f"run: {{iterations: {HUGE}}}"),
        "a tree that is cut": text("trees/000020-3/tree.json", '{"format": 1, "nodes": [{"id"'),
        "a tree of steps that are not": text(
            "trees/000020-3/tree.json", json.dumps(document(lambda tree: tree["nodes"][1].update(step=99)))
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


@pytest.mark.long
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


def test_hostile_names_of_pictures_are_not_followed(client_of, made):
    name = 'samples/../config.yaml#x.png" onerror="a'
    database = connect(made, readonly=False)
    database.execute("UPDATE samples SET picture = ?", (name,))
    database.close()
    client = client_of(made)
    page = Elements(client.get("/compare?columns=made@eval-4").text)
    found = [one for _, attributes in page.found for one in attributes.items()]
    assert not [attribute for attribute, _ in found if attribute.startswith("on")]
    media = [value for attribute, value in found if attribute in ("src", "data-full") and "/media/" in (value or "")]
    assert len(media) >= 6
    for address in [*media, "/media/made/samples/%2e%2e/config.yaml", "/media/made/config.yaml"]:
        answer = client.get(address)
        assert answer.status_code == 404 and "run: {name" not in answer.text, address
