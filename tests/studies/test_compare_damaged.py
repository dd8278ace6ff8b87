"""A comparison's folder that was damaged: reported or gone on with, it ends in numbers or in a sentence."""

from __future__ import annotations

import json
import random

import pytest

from diffrl.errors import DiffrlError
from diffrl.studies.compare.archive import pack, unpack
from diffrl.studies.compare.plan import Record
from diffrl.studies.compare.results import collect
from diffrl.studies.compare.tables import markdown, results
from tests.studies.test_compare import config, in_order, refusal, run, trained  # noqa: F401  (fixtures)
from tests.studies.test_compare_archive import compared  # noqa: F401  (a fixture)

HOSTILE = ("words", "../../elsewhere", None, [], [3], {}, -1, 10**30, 0.5, float("nan"), True)


def places(node, path=()):
    """Every place of a JSON value."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(found for key, child in children for found in places(child, (*path, key)))]


def damaged(rng, text):
    """A JSON text cut short, or with one value removed or replaced by another."""
    if rng.random() < 0.1:
        return text[: rng.randrange(len(text))]
    data = {"all": json.loads(text)}
    *above, last = ("all", *rng.choice(places(data["all"])))
    node = data
    for key in above:
        node = node[key]
    if rng.random() < 0.2:
        del node[last]
    else:
        node[last] = rng.choice(HOSTILE)
    return json.dumps(data.get("all", ""))


@pytest.mark.parametrize("name", ["state.json", "summary.json", "metrics.jsonl", "evaluations.jsonl"])
def test_a_damaged_file_is_numbers_or_a_sentence(compared, tmp_path, name):  # noqa: F811
    out, _ = compared
    rng = random.Random(name)
    path = out / name if name == "state.json" else out / "two" / "seed-1" / name
    whole = path.read_text()
    for _ in range(50):
        lines = [whole] if name.endswith(".json") else whole.splitlines()
        number = rng.randrange(len(lines))
        lines[number] = damaged(rng, lines[number])
        path.write_text("\n".join(lines) + "\n")
        for use in (report, Record.read, lambda out: pack(out, tmp_path / "kept.jsonl")):
            try:
                use(out)
            except DiffrlError as error:
                assert str(out) in str(error) or "configuration" in str(error) or "price" in str(error), lines[number]


def report(out):
    comparison = collect(out)
    return markdown(comparison, 0.1), results(comparison, 0.1)


def test_a_damaged_archive_is_refused_and_leaves_nothing(compared, tmp_path):  # noqa: F811
    out, _ = compared
    pack(out, tmp_path / "kept.jsonl")
    lines, rng = (tmp_path / "kept.jsonl").read_text().splitlines(), random.Random(3)
    for count in range(30):
        number = rng.randrange(len(lines))
        changed = [*lines[:number], damaged(rng, lines[number]), *lines[number + 1 :]]
        (tmp_path / "hurt.jsonl").write_text("\n".join(changed))
        target = tmp_path / f"again-{count}"
        try:
            unpack(tmp_path / "hurt.jsonl", target)
        except DiffrlError as error:
            assert not target.exists() and "hurt.jsonl" in str(error)


def test_a_comparison_goes_on_beside_a_damaged_run(compared, trained, capsys):  # noqa: F811
    out, asked = compared
    hurt = out / "two" / "seed-1" / "summary.json"
    hurt.write_text('{"iterations": 4')
    assert run(*in_order(*asked, "--seeds", 3, "--out", out)) != 0
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err and str(hurt) in (said.out + said.err).replace("\n", "")
    assert {"base/seed-2", "two/seed-2"} <= set(trained) and hurt.read_text() == '{"iterations": 4'
