"""Folders of pictures: what is found, with which captions, what stays out, and scores."""

from __future__ import annotations

import json
import re
from urllib.request import urlopen

import pytest
from PIL import Image

from diffrl.cli import main
from diffrl.errors import ConfigError
from diffrl.gallery import folders
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.folders import FolderSource
from diffrl.gallery.links import ServerLinks
from diffrl.gallery.query import Query
from diffrl.gallery.records import State
from diffrl.gallery.scoring import score_folders
from diffrl.gallery.site import Site
from reward_models.media import score_media, to_pil
from reward_models.registry import load_reward
from reward_models.self_test import drawing
from tests.gallery.made import flat, make_run

ODD = ("ünï cödé.png", 'it\'s "quoted" & <b>.png', "100%41 #1?.png", "two  spaces .png", "a.b.png", "日本/絵 1.png")
FOLDER = State("folder", 0)


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A folder of four pictures with captions of three kinds, and one without; looked at anew at every question."""
    monkeypatch.setattr(folders, "FRESH", -1.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "pictures"
    (root / "sub").mkdir(parents=True)
    for number, name in enumerate(("cat.png", "dog.png", "sub/bird.png", "bare.png")):
        to_pil(flat(number / 5)).save(root / name)
    (root / "cat.txt").write_text("a cat\n")
    (root / "metadata.jsonl").write_text(json.dumps({"file_name": "dog.png", "text": "a dog", "kind": "pet"}) + "\n")
    (root / "sub" / "metadata.jsonl").write_text('{"prompt": "a bird"}\n')
    return FolderSource("pictures", root)


def files(source):
    return [sample.file for sample in source.samples(FOLDER, [brief.id for brief in source.briefs(FOLDER, None)])]


def test_pictures_come_in_the_order_of_their_names_with_the_captions_beside_them(source):
    assert source.states() == [State("folder", 0, 4)]
    briefs = source.briefs(FOLDER, None)
    assert len({brief.id for brief in briefs}) == 4
    prompts = {brief.key[4]: brief.key[0] for brief in briefs}
    assert prompts == {"bare": "", "cat": "a cat", "dog": "a dog", "sub/bird": "a bird"}
    assert all(brief.key[1:4] == (0, 0, 0) and brief.value is None for brief in briefs)
    assert files(source) == ["bare.png", "cat.png", "dog.png", "sub/bird.png"]
    (dog,) = source.samples(FOLDER, [2])
    assert dog.prompt == "a dog" and dog.metadata == {"kind": "pet", "text": "a dog"} and dog.total is None
    assert source.reward_names(FOLDER) == []
    assert source.samples(FOLDER, [3, 99, -1, 0])[0].file == "sub/bird.png", "ids that are not there are passed over"


def test_ids_stay_with_their_pictures_whatever_comes_and_goes(source):
    """A page asks twice, for briefs and for samples, and the folder may change in between."""
    briefs = {brief.id: brief.key for brief in source.briefs(FOLDER, None)}
    to_pil(flat(0.9)).save(source.path / "aaa.png")
    (source.path / "cat.png").unlink()
    (source.path / "bare.txt").write_text("another prompt")
    found = {sample.id: sample.key for sample in source.samples(FOLDER, list(briefs))}
    assert found == {number: key for number, key in briefs.items() if key[4] in ("dog", "sub/bird")}
    later = {brief.id: brief.key for brief in source.briefs(FOLDER, None)}
    assert [key[4] for key in later.values()] == ["aaa", "bare", "dog", "sub/bird"]
    assert {number for number, key in later.items() if key[4] in ("aaa", "bare")}.isdisjoint(briefs)
    to_pil(flat(0.1)).save(source.path / "cat.png")  # the same picture again, under the id that it had
    again = {brief.key: brief.id for brief in source.briefs(FOLDER, None)}
    assert {key: again[key] for key in briefs.values() if key in again} == {
        key: number for number, key in briefs.items() if key[4] != "bare"
    }


def test_what_browsers_do_not_play_is_left_out_and_counted(source):
    for name in ("b.mkv", "c.AVI", "d.tif", "e.mp4", "f.m4v", "g.webm", "h.mov"):
        (source.path / name).write_bytes(b"not looked into")
    assert files(source)[-1] == "sub/bird.png" and {"e.mp4", "f.m4v", "g.webm", "h.mov"} <= set(files(source))
    assert not {"b.mkv", "c.AVI", "d.tif"} & set(files(source))
    assert "3 left out of pictures: browsers do not show their format." in source.notes()
    for name in ("b.mkv", "c.AVI"):
        with pytest.raises(GalleryError):
            source.media(name)
    text = Site([source], ServerLinks("t"), {}).answer("compare", Query()).body
    assert re.findall(r'<video [^>]*src="/media/pictures/([^"]*)"', text) == ["e.mp4", "f.m4v", "g.webm", "h.mov"]
    assert not re.findall(r'<img [^>]*src="[^"]*\.(?:mp4|m4v|webm|mov|mkv|avi)', text, re.I)
    for name in ("bare.png", "cat.png", "dog.png", "sub/bird.png", "e.mp4", "f.m4v", "g.webm", "h.mov"):
        (source.path / name).unlink()
    assert source.states() == [] and "3 left out of pictures: browsers do not show their format." in source.notes()


def test_a_folder_of_diffrl_generate_shows_what_its_index_lists_and_not_the_grid(tmp_path):
    for name in ("0000-0.png", "0000-1.png", "grid.png"):
        to_pil(flat(0.2)).save(tmp_path / name)
    lines = [{"file": f"0000-{n}.png", "prompt": "a red circle", "seed": 7, "number": n} for n in range(2)]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = FolderSource("made", tmp_path).samples(FOLDER, range(9))
    assert [sample.file for sample in found] == ["0000-0.png", "0000-1.png"]
    assert {sample.prompt for sample in found} == {"a red circle"}


def test_odd_names_are_found_and_served(tmp_path, served):
    root = tmp_path / "odd names ü"
    for number, name in enumerate(ODD):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        to_pil(flat(number / 7)).save(root / name)
    address = served(root)
    assert sorted(files(FolderSource("odd-names", root))) == sorted(ODD)
    for name in ODD:
        with urlopen(address + ServerLinks("x").media("odd-names", name)) as answer:
            assert answer.read() == (root / name).read_bytes(), name


def test_changes_are_seen_and_nothing_is_read_twice_for_nothing(source, monkeypatch):
    reads = []
    real = folders.read_folder
    monkeypatch.setattr(folders, "read_folder", lambda *given: reads.append(1) or real(*given))
    first = source.version()
    assert source.version() == first == source.version() and len(reads) == 1
    (source.path / "cat.txt").write_text("another cat\n")
    second = source.version()
    assert second != first and "another cat" in [brief.key[0] for brief in source.briefs(FOLDER, None)]
    to_pil(flat(0.9)).save(source.path / "zebra.png")
    third = source.version()
    assert third != second and files(source)[-1] == "zebra.png"
    (source.path / "bare.png").unlink()
    assert source.version() != third and files(source)[0] == "cat.png" and len(reads) == 4


def test_a_look_counts_for_a_while(source, monkeypatch):
    monkeypatch.setattr(folders, "FRESH", 60.0)
    before = source.version()
    (source.path / "cat.png").unlink()
    assert source.version() == before and len(source.entries()) == 4


def test_links_out_of_the_folder_stay_out(source, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    to_pil(flat(0.5)).save(outside / "secret.png")
    (source.path / "link.png").symlink_to(outside / "secret.png")
    (source.path / "linked").symlink_to(outside)
    (source.path / "same.png").symlink_to(source.path / "cat.png")
    (source.path / "loop.png").symlink_to(source.path / "loop.png")
    assert files(source) == ["bare.png", "cat.png", "dog.png", "same.png", "sub/bird.png"]
    assert "links out of the folder" in " ".join(source.notes())
    for name in ("link.png", "linked/secret.png", "../outside/secret.png", str(outside / "secret.png"), "cat.txt"):
        with pytest.raises(GalleryError) as refused:
            source.media(name)
        assert refused.value.status == 404
    assert source.media("same.png") == str((source.path / "cat.png").resolve())
    (outside / "secret.txt").write_text("a password")
    (source.path / "bare.txt").symlink_to(outside / "secret.txt")
    with pytest.raises(GalleryError, match=r"bare\.txt is a link to elsewhere"):
        source.states()


def test_an_index_that_names_files_elsewhere_shows_none_of_them(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    to_pil(flat(0.5)).save(outside / "secret.png")
    to_pil(flat(0.5)).save(root / "cat.png")
    (root / "door").symlink_to(outside)
    (root / "samples.jsonl").write_text(
        '{"file": "door/secret.png", "prompt": "x"}\n{"file": "cat.png", "prompt": "y"}\n'
    )
    assert files(FolderSource("root", root)) == ["cat.png"]


def test_empty_gone_and_broken_folders_say_so(source):
    (source.path / "metadata.jsonl").write_text("{broken")
    assert source.states() and any("JSON object" in note for note in source.notes())
    for entry in source.path.rglob("*.*"):
        entry.unlink()
    assert source.states() == [] and "no image" in source.notes()[0]
    (source.path / "sub").rmdir()
    source.path.rmdir()
    with pytest.raises(GalleryError, match="is gone"):
        source.states()


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """A folder of drawings with captions that `shapes` can read, one without a caption and one torn."""
    monkeypatch.setattr(folders, "FRESH", -1.0)
    root = tmp_path / "drawn"
    root.mkdir()
    for number, (colour, shape) in enumerate((("red", "circle"), ("blue", "square"), ("green", "triangle"))):
        to_pil(drawing(colour, shape, side=40)).save(root / f"{number}.png")
        (root / f"{number}.txt").write_text("a red circle" if number == 2 else f"a {colour} {shape}")
    to_pil(drawing("red", "square", side=40)).save(root / "bare.png")
    (root / "torn.png").write_bytes((root / "0.png").read_bytes()[:50])
    (root / "torn.txt").write_text("a red circle")
    return FolderSource("drawn", root)


def scored(source, *names, cache):
    score_folders([source], names, print, cache)
    return {sample.file: sample for sample in source.samples(FOLDER, range(99))}


def test_scores_are_those_of_the_scorers_and_what_fails_says_why(drawn, tmp_path):
    names = ("sharpness", "jpeg_compressibility", "correct=shapes")
    found = scored(drawn, *names, cache=tmp_path / "cache.sqlite")
    pictures = [str(drawn.path / f"{n}.png") for n in range(3)]
    prompts = ["a red circle", "a blue square", "a red circle"]
    for name in names:
        label, _, scorer = name.rpartition("=")
        label = label or scorer
        expected = score_media(load_reward(scorer), pictures, prompts).raw
        for number in range(3):
            assert found[f"{number}.png"].rewards[label] == pytest.approx(float(expected[number]), rel=1e-6)
    assert found["0.png"].rewards["correct"] > 0.9 > found["2.png"].rewards["correct"]
    assert found["0.png"].rewards["correct/colour"] == pytest.approx(1) and found["0.png"].error is None
    assert found["bare.png"].rewards["correct"] is None and found["bare.png"].rewards["sharpness"] is not None
    assert "No prompt was found for" in found["bare.png"].error and "bare.txt" in found["bare.png"].error
    assert found["torn.png"].rewards == {"sharpness": None, "jpeg_compressibility": None, "correct": None}
    assert "sharpness: " in found["torn.png"].error and "correct: " in found["torn.png"].error
    listed = drawn.reward_names(FOLDER)
    assert [name for name in listed if "/" not in name] == ["sharpness", "jpeg_compressibility", "correct"]
    assert "correct/colour" in listed
    briefs = {brief.key[4]: brief.value for brief in drawn.briefs(FOLDER, "correct")}
    assert briefs["0"] > 0.9 and briefs["bare"] is None
    assert {b.value for b in drawn.briefs(FOLDER, "correct/colour")} >= {1.0, None}
    assert drawn.notes() == []


def test_what_comes_later_has_no_scores_until_the_next_start(drawn, tmp_path):
    cache = tmp_path / "cache.sqlite"
    before = scored(drawn, "sharpness", cache=cache)
    version = drawn.version()
    Image.new("RGB", (24, 24), "navy").save(drawn.path / "0.png")
    to_pil(drawing("blue", "circle", side=40)).save(drawn.path / "new.png")
    late = {sample.file: sample.rewards["sharpness"] for sample in drawn.samples(FOLDER, range(99))}
    assert late == {**{name: one.rewards["sharpness"] for name, one in before.items()}, "0.png": None, "new.png": None}
    assert drawn.notes()[-1].startswith("2 without scores") and drawn.version() != version
    after = scored(FolderSource("drawn", drawn.path), "sharpness", cache=cache)
    assert after["0.png"].rewards["sharpness"] == 0.0 and after["new.png"].rewards["sharpness"] is not None
    assert after["1.png"].rewards == before["1.png"].rewards


BROKEN = """
from reward_models.base import ScorerSpec
from reward_models.common.errors import RewardError


class Broken:
    spec = ScorerSpec("broken", "Breaks.", (0.0, 1.0), uses_prompt=False)

    def __call__(self, batch):
        raise RewardError("The weights are rotten. Fetch them again.")

    def to(self, device):
        return self


class Leaving(Broken):
    def __call__(self, batch):
        raise SystemExit("no more")


class Unmade(Broken):
    def __init__(self):
        raise ZeroDivisionError("nothing to divide")
"""


@pytest.mark.parametrize(
    ("kind", "words"), [("Broken", "rotten"), ("Leaving", "SystemExit: no more"), ("Unmade", "nothing to divide")]
)
def test_a_reward_that_scores_nothing_is_refused(drawn, tmp_path, monkeypatch, kind, words):
    (tmp_path / "breaking_scorer.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=words):
        scored(drawn, f"one=breaking_scorer:{kind}", cache=tmp_path / "cache.sqlite")


def test_a_folder_that_cannot_be_scored_says_so_and_the_next_one_is_scored(drawn, tmp_path):
    """`shapes` needs prompts, which one folder has and the other has not."""
    bare = tmp_path / "without"
    bare.mkdir()
    to_pil(flat(0.5)).save(bare / "0.png")
    other = FolderSource("without", bare)
    score_folders([other, drawn], ["shapes"], print, tmp_path / "cache.sqlite")
    assert any(brief.value is not None for brief in drawn.briefs(FOLDER, "shapes"))
    assert [brief.value for brief in other.briefs(FOLDER, "shapes")] == [None]


@pytest.mark.parametrize(
    ("rewards", "words"),
    [
        (["sharpnes"], "Did you mean 'sharpness'"),
        (["sharpness", "sharpness"], "same label"),
        (["x=no_such_module:Thing"], "cannot be imported"),
    ],
)
def test_rewards_that_do_not_exist_end_the_command_at_once(drawn, capsys, rewards, words):
    with pytest.raises(SystemExit) as stop:
        main(["gallery", str(drawn.path), "--port", "0", *(part for name in rewards for part in ("--reward", name))])
    captured = capsys.readouterr()
    assert stop.value.code == 2 and captured.err.startswith("error: ") and words in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""


def test_rewards_without_a_folder_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["gallery", str(make_run(tmp_path / "run")), "--reward", "sharpness"])
    assert stop.value.code == 2 and "no folder" in capsys.readouterr().err


def test_images_without_prompts_are_known_by_their_files(source, client_of):
    client = client_of(source.path)
    page = client.get("/compare?prompt=BAR").text
    assert page.count('<li class="item"') == 1 and ">bare</p>" in page and "data-none" not in page
    lines = client.get("/compare.csv?sort=prompt").text.splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [
        ["a bird", "sub/bird"],
        ["a cat", "cat"],
        ["a dog", "dog"],
        ["", "bare"],
    ]
