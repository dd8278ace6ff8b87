"""Hostile texts stay texts on every page, and broken runs give messages: no script runs, no 500, no traceback."""

from __future__ import annotations

import html
import json
import random
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from diffrl.gallery import answers
from diffrl.gallery.site import PAGES
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
BODIES = (
    "a",
    "../..",
    "-1",
    "9" * 40,
    "nan",
    "inf",
    "made@eval-4",
    "@",
    "\0",
    "<b>",
    "a" * 3000,
    "%",
    "000020-3/..",
    "💥",
)
PARAMETERS = (
    "run",
    "state",
    "tree",
    "columns",
    "prompt",
    "reward",
    "low",
    "high",
    "sort",
    "page",
    "a",
    "b",
    "x",
    "panel",
)

SLOW = ("curves.svg", "report")
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
def test_hostile_texts_stay_texts_on_every_page(served, page, tmp_path):
    run = hostile_run(tmp_path / "runs" / NAME.replace("/", ""))
    make_run(tmp_path / "runs" / "other")
    address = served(tmp_path / "runs")
    key = page.request.get(f"{address}/state").json()
    key = next(name for name in key if name != "other")
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    seen = 0
    extra = [
        f"/samples?run={key}&prompt={quote(HOSTILE[1])}",
        f"/{quote(NAME)}",
        f"/samples?run={key}&reward={quote(NAME)}",
    ]
    extra += [f"/compare?run={key}&reward={quote(NAME)}", f"/vote?run={key}", f"/run?run={quote(HOSTILE[1])}"]
    for path in [*(path for path in addresses(key) if not path.startswith("/curves.svg")), *extra]:
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


def broken(tmp_path: Path):
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
        "no pictures": lambda run: shutil.rmtree(run / "samples"),
        "an index that is a folder": lambda run: ((run / "samples.sqlite").unlink(), (run / "samples.sqlite").mkdir()),
        "torn metrics": text("metrics.jsonl", '{"iteration": 1, "reward/mean": 0.5}\n{"iter'),
        "metrics with rubbish": text(
            "metrics.jsonl", b'{"iteration": 1}\n\xff\xfe\n[1]\n{"iteration": "x", "reward/mean": {}}\n'
        ),
        "metrics of other shapes": text(
            "metrics.jsonl", '{"reward/mean": "high"}\n{"iteration": null}\n{"iteration": 3.5}\n'
        ),
        "huge numbers": text("metrics.jsonl", '{"iteration": 1, "reward/mean": 1e999, "held_out/a": -1e308}\n' * 3),
        "no metrics": lambda run: (run / "metrics.jsonl").unlink(),
        "a list as summary": text("summary.json", "[]"),
        "a summary of other shapes": text(
            "summary.json", '{"held_out": 3, "seconds": [], "versions": null, "counts": "x"}'
        ),
        "rubbish as summary": text("summary.json", "{"),
        "rubbish as environment": text("environment.json", b"\x00\xff"),
        "rubbish as configuration": text("config.yaml", b"a: [\xff\n\tb: {"),
        "another configuration": text("config.yaml", "- 1\n- !!python/object:os.system {}\n"),
        "a deep configuration": text("config.yaml", "[" * 3000),
        "a tree that is cut": text("trees/000020-3/tree.json", '{"format": 1, "nodes": [{"id"'),
        "a tree of other shapes": text("trees/000020-3/tree.json", '{"format": 1, "nodes": 3, "branching": []}'),
        "a tree without pictures": lambda run: [path.unlink() for path in (run / "trees").rglob("*.webp")],
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


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["pages", "figures"])
@pytest.mark.parametrize("way", broken(Path()))
def test_a_broken_run_is_told_on_its_pages(client_of, whole, tmp_path, monkeypatch, caplog, capfd, way, slow):
    monkeypatch.setattr(answers, "_noted", set())
    run = tmp_path / "runs" / "made"
    shutil.copytree(whole, run)
    make_run(tmp_path / "runs" / "other", iterations=2)
    client = client_of(tmp_path / "runs")
    broken(tmp_path)[way](run)
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


def test_no_parameter_of_any_page_is_trusted(client_of, whole, monkeypatch, caplog):
    monkeypatch.setattr(answers, "_noted", set())
    client = client_of(whole)
    for name in PAGES:
        if name == "preferences.parquet" or name in SLOW:
            continue
        for place, parameter in enumerate(PARAMETERS):
            for body in (BODIES[(place * 5 + number + len(name)) % len(BODIES)] for number in range(2)):
                path = f"/{name}?run=made&tree=000020-3&{parameter}={quote(body)}"
                answer = client.get(path)
                assert answer.status_code in (200, 400, 404), (path, answer.status_code, answer.text[-300:])
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
    for name in ("run", "samples", "curves", "report", "trees"):
        for other in ("..", "../made", str(run), "made/..", "."):
            assert client.get(f"/{name}?run={quote(other, safe='')}").status_code == 404, (name, other)


def test_hostile_names_of_pictures_are_not_followed(client_of, made):
    database = connect(made, readonly=False)
    database.execute("UPDATE samples SET picture = 'samples/../config.yaml#x.png\" onerror=\"a'")
    database.close()
    text = client_of(made).get("/samples?run=made&state=eval-4").text
    assert 'onerror="' not in text and html.escape('onerror="a') not in html.unescape("")
    assert "run: {name" not in client_of(made).get("/media/made/samples/../config.yaml").text
