"""Preference pairs: read here as the scripts read them that they are meant for."""

from __future__ import annotations

import io
import json
import sys

import pytest
from PIL import Image

from diffrl.gallery.preferences import COLUMNS, parquet
from diffrl.gallery.records import State
from diffrl.gallery.votes import Side, add_vote, side_of
from reward_models.media import to_pil
from tests.gallery.made import flat, make_run

pa = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def voted(tmp_path, site_of):
    """Votes of every kind on a run, and where they are."""
    run = make_run(tmp_path / "runs" / "made")
    site = site_of(run)
    (source,) = site.sources
    states = [State("eval", 0), State("eval", 4)]
    samples = [source.samples(state, [brief.id for brief in source.briefs(state, None)]) for state in states]
    sides = [[side_of(source, state, one) for one in found] for state, found in zip(states, samples, strict=True)]
    file = tmp_path / "votes.jsonl"
    for number, (left, choice) in enumerate((("a", "a"), ("b", "a"), ("a", "b"), ("b", "b"), ("a", "tie"))):
        add_vote(file, "Ada", "s", sides[0][number], sides[1][number], left, choice)
    return run, file, sides


def table_of(client):
    answer = client.get("/preferences.parquet")
    assert answer.status_code == 200 and "preferences.parquet" in answer.headers["content-disposition"]
    return pa.read_table(io.BytesIO(answer.content))


def test_jsonl_has_the_columns_of_trls_preference_type(voted, client_of):
    run, file, sides = voted
    answer = client_of(run).get("/preferences.jsonl")
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert "preferences.jsonl" in answer.headers["content-disposition"] and len(rows) == 4, "without the tie"
    for row, (chosen, number) in zip(rows, ((0, 0), (0, 1), (1, 2), (1, 3)), strict=True):
        # TRL takes a row for an explicit-prompt preference if it has these three, and for plain text if they are str.
        assert all(isinstance(row[name], str) for name in ("prompt", "chosen", "rejected"))
        assert row["prompt"] == row["caption"] == sides[0][number].sample[0]
        expected = [str(run.resolve() / sides[which][number].picture) for which in (chosen, 1 - chosen)]
        assert [row["chosen"], row["rejected"]] == expected
        with Image.open(row["chosen"]) as picture, Image.open(row["rejected"]) as other:
            assert picture.tobytes() != other.tobytes()
        winner, loser = ("jpg_0", "jpg_1") if row["label_0"] == 1 else ("jpg_1", "jpg_0")
        assert (row[winner], row[loser]) == (row["chosen"], row["rejected"])
        assert row["label_0"] in (0, 1) and row["label_0"] + row["label_1"] == 1
    for row, vote in zip(rows, map(json.loads, file.read_text().splitlines()), strict=False):
        assert row["jpg_0"].endswith(vote[vote["left"]]["picture"]), "jpg_0 was on the left"


def test_parquet_is_read_as_diffusers_reads_it(voted, client_of):
    """What preprocess_train of train_diffusion_dpo.py does: decode both, swap where label_0 == 0, winner first."""
    run, _, sides = voted
    table = table_of(client_of(run))
    assert tuple(table.column_names) == COLUMNS and table.num_rows == 4
    examples = table.to_pydict()
    images = [[Image.open(io.BytesIO(data)).convert("RGB") for data in examples[name]] for name in ("jpg_0", "jpg_1")]
    assert set(examples["label_0"]) == {0.0, 1.0}, "the script does not filter 0.5 and would take it for a win"
    for number, chosen in enumerate((0, 0, 1, 1)):
        pair = (images[0][number], images[1][number])
        winner, loser = pair[::-1] if examples["label_0"][number] == 0 else pair
        for image, side in ((winner, sides[chosen][number]), (loser, sides[1 - chosen][number])):
            with Image.open(run / side.picture) as expected:
                assert image.tobytes() == expected.convert("RGB").tobytes()
        assert examples["caption"][number] == sides[0][number].sample[0]


def test_only_pictures_of_the_gallery_are_read(voted, client_of, tmp_path):
    """A file of votes may come from anybody: it must not make the gallery hand out other files."""
    run, file, sides = voted
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    to_pil(flat(0.1)).save(secret / "secret.png")
    key = ("p", 0, 0, 0, "")
    elsewhere = Side("x", str(secret), "folder-0", key, "secret.png")
    climbing = Side("x", str(run.resolve()), "eval-0", key, "../../elsewhere/secret.png")
    for side in (elsewhere, climbing):
        add_vote(file, "", "s", side, sides[1][0], "a", "a")
    assert table_of(client_of(run)).num_rows == 4
    assert client_of(run).get("/votes").status_code == 200
    assert len(client_of(run).get("/preferences.jsonl").text.splitlines()) == 6, "paths are only named"


def test_missing_pictures_and_videos_are_left_out(voted, client_of):
    run, _, sides = voted
    (run / sides[0][0].picture).unlink()
    frames = [to_pil(flat(0.1 * n)) for n in range(3)]
    frames[0].save(run / sides[1][1].picture, save_all=True, append_images=frames[1:], duration=100)
    (run / sides[1][2].picture).write_bytes(b"torn")
    assert table_of(client_of(run)).num_rows == 1


def test_without_votes_or_pyarrow_a_sentence_says_so(made, client_of, monkeypatch):
    client = client_of(made)
    answer = client.get("/preferences.parquet")
    assert answer.status_code == 404 and "Vote first" in answer.text
    assert client.get("/preferences.jsonl").text == ""
    row = dict.fromkeys(COLUMNS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Exception, match=r"pip install 'diffrl\[parquet\]'"):
        parquet([row])


def test_only_the_votes_that_were_asked_for(voted, client_of):
    run, file, sides = voted
    other = Side("x", "/gone", "eval-2", ("p", 0, 0, 0, ""), "samples/1.webp")
    add_vote(file, "", "s", other, sides[1][0], "a", "a")
    client = client_of(run)
    counts = [
        len(client.get(f"/preferences.jsonl{query}").text.splitlines())
        for query in ("", "?a=made@eval-0&b=made@eval-4", "?a=made@eval-0&b=made@eval-2", "?run=made")
    ]
    assert counts == [5, 4, 0, 5]
