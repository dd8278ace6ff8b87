"""Every reader against every file of `made.FILES`, row by row: each file is what it is, or its own failed row."""

import contextlib
import io
import json
import re
import struct

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, ImageOps

import diffrl
from diffrl.data.sources import read_source, require_source, source_size
from diffrl.errors import ConfigError
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.folders import FolderSource
from diffrl.gallery.records import State
from diffrl.gallery.scoring import score_folders
from diffrl.gallery.thumbnails import blind_image, shrink
from reward_models import RewardError, ScorerSpec
from reward_models.base import WithoutWeights, output_of_rows
from reward_models.cli import main
from reward_models.media import as_media, open_media
from reward_models.scoring.items import peek
from tests.files.made import FILES, write_all

pytest.importorskip("av")
STILLS = {name for name, file in FILES.items() if file.expected.pixels is not None and file.expected.fps is None}
READABLE = {name for name, file in FILES.items() if file.expected.pixels is not None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("files") / "files")


class Seen(WithoutWeights):
    """Scores by the mean, and says of what it was taken: height, width, frames, rate, corners."""

    spec = ScorerSpec("seen", "What arrives.", (0.0, 255.0), media=("image", "video"), uses_prompt=False)

    def __call__(self, batch):
        rows = [(media.double().mean().item(), facts(media, batch.fps), None) for media in batch.media]
        return output_of_rows(rows, list(rows[0][1]))


def facts(media, fps):
    """Numbers that differ wherever a file is read in another way; media (3, H, W) or (F, 3, H, W)."""
    clip = media if media.ndim == 4 else media[None]
    corners = {f"{y}{x}": float(clip[:, :, y, x].double().mean()) for y in (0, -1) for x in (0, -1)}
    shape = {"height": clip.shape[-2], "width": clip.shape[-1], "frames": len(clip) if media.ndim == 4 else 0}
    return {**shape, **corners, "fps": fps or 0.0}


def wrong(name, parts, error):
    """How what was made of a file differs from what is expected; None if it does not."""
    expected = FILES[name].expected
    if expected.pixels is None:
        return None if error and re.search(expected.why, error) else f"no failure, or another: {error!r}"
    if error:
        return error
    media = torch.from_numpy(np.moveaxis(expected.pixels, -1, -3).copy())
    near = {
        key: pytest.approx(value, abs=3 * expected.near + 0.01) for key, value in facts(media, expected.fps).items()
    }
    return None if parts == near else f"{parts} instead of {facts(media, expected.fps)}"


def failures(rows):
    return {name: why for name, (parts, error) in rows.items() if (why := wrong(name, parts, error))}


def test_every_pixel_is_right(folder):
    found = {}
    for name, file in FILES.items():
        try:
            media, fps = open_media(folder / name)
        except RewardError as error:
            found[name] = wrong(name, {}, str(error))
            continue
        if file.expected.pixels is None:
            found[name] = f"read as {tuple(media.shape)}"
            continue
        pixels = np.moveaxis(media.numpy(), -3, -1)
        same = pixels.shape == file.expected.pixels.shape
        difference = np.abs(pixels.astype(float) - file.expected.pixels).mean() if same else np.inf
        right = difference <= file.expected.near and fps == pytest.approx(file.expected.fps)
        found[name] = None if right else f"{pixels.shape}, {fps} a second, {difference:.1f} apart"
    assert {name: why for name, why in found.items() if why} == {}


def test_the_command_scores_each_file_or_says_why_not(folder, tmp_path, monkeypatch):
    out = tmp_path / "rows.jsonl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as end:
        main(["score", str(folder), "--reward", "tests.files.test_readers:Seen", "--out", str(out), "--no-cache"])
    assert not end.value.code
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    scores = {row["file"].rpartition("/")[2]: row["rewards"]["tests.files.test_readers:Seen"] for row in rows}
    assert scores.keys() == FILES.keys()
    assert failures({name: (score["parts"], score["error"]) for name, score in scores.items()}) == {}


def test_python_scores_the_same_whether_a_path_or_an_open_image_is_given(folder):
    rows = diffrl.score([folder / name for name in FILES], rewards=Seen())
    made = {
        name: ({key.removeprefix("seen/"): row[key] for key in row if "/" in key}, row["error"])
        for name, row in zip(FILES, rows, strict=True)
    }
    assert failures(made) == {}
    for name in (name for name in READABLE if not name.endswith((".mp4", ".webm", ".mkv", ".mov"))):
        media, fps = open_media(folder / name)
        with Image.open(folder / name) as image:
            given, rate = as_media(image)
            assert torch.equal(given, media) and rate == fps, name
        if name in STILLS and "turned" in name:
            for change in (ImageOps.exif_transpose, Image.Image.copy, lambda image: image.convert("RGB")):
                with Image.open(folder / name) as image:
                    assert torch.equal(as_media(change(image))[0], media), name


def test_sources_of_edits_are_stills_and_their_size_is_that_of_what_is_read(folder):
    for name, file in FILES.items():
        path = str(folder / name)
        if name in STILLS:
            require_source(path, "here")
            assert (*source_size(path), 3) == file.expected.pixels.shape == (*read_source(path).shape[1:], 3), name
            continue
        with pytest.raises(ConfigError, match=re.escape(name)):
            read_source(path)
        with contextlib.suppress(ConfigError):  # its beginning may be whole
            require_source(path, "here")


def test_the_gallery_shows_each_image_or_says_why_not(folder):
    for name, file in FILES.items():
        if name.endswith((".mp4", ".webm", ".mkv", ".mov", ".tif")):
            continue
        if file.expected.pixels is None:  # the first frame of a clip may be whole, and nothing else is raised
            whole = (
                contextlib.suppress(GalleryError) if "frames" in name or "note" in name or name == "cut.gif" else None
            )
            with whole or pytest.raises(GalleryError):
                shrink(folder / name, 128, still=True)
            with whole or pytest.raises(GalleryError):
                blind_image(folder / name, folder / "plain.png")
        elif name in STILLS and name != "turned.webp":  # which browsers do not turn
            data, kind = blind_image(folder / name, folder / "plain.png")
            assert kind == "image/png"
            for small in (data, shrink(folder / name, 128, still=False)):
                shown, _ = as_media(Image.open(io.BytesIO(small)))
                expected = Image.fromarray(file.expected.pixels).resize((shown.shape[2], shown.shape[1]))
                assert shown.shape[1] < shown.shape[2]
                assert np.abs(np.asarray(expected).astype(float) - shown.permute(1, 2, 0).numpy()).mean() < 7, name
        else:
            assert shrink(folder / name, 1024, still=False) is None


def test_a_folder_of_the_gallery_scores_as_the_command_does(folder, tmp_path):
    source = FolderSource("files", folder)
    score_folders([source], ["tests.files.test_readers:Seen"], print, tmp_path / "cache.sqlite")
    label = "tests.files.test_readers:Seen"
    rows = {}
    for sample in source.samples(State("folder", 0, 0), range(len(FILES))):
        parts = {key.removeprefix(f"{label}/"): value for key, value in sample.rewards.items() if "/" in key}
        rows[sample.file] = (parts, sample.error)
    assert rows.keys() == {name for name in FILES if not name.endswith((".tif", ".mkv"))}
    assert failures(rows) == {}


RAISED = (RuntimeError, KeyError, SyntaxError, EOFError, OSError, MemoryError, RecursionError, struct.error)


@pytest.mark.parametrize("stage", ["open", "load"])
def test_whatever_a_decoder_raises_is_the_failure_of_that_file(stage, tmp_path, monkeypatch):
    for name in ("a.png", "bad.png", "c.png"):
        FILES["plain.png"].write(tmp_path / name)
    real = ImageFile.ImageFile.load if stage == "load" else Image.open
    for kind in RAISED:

        def broken(given, *arguments, kind=kind, **options):
            if "bad.png" in str(getattr(given, "filename", given)):
                raise kind("what it says")
            return real(given, *arguments, **options)

        with monkeypatch.context() as patch:
            if stage == "load":
                patch.setattr(ImageFile.ImageFile, "load", broken)
            else:
                patch.setattr(Image, "open", broken)
            rows = diffrl.score([tmp_path / name for name in ("a.png", "bad.png", "c.png")], rewards=Seen())
            assert [row["error"] is None for row in rows] == [True, False, True], kind
            assert "bad.png" in rows[1]["error"]
            with pytest.raises(ConfigError, match="bad.png"):
                read_source(str(tmp_path / "bad.png"))
            with pytest.raises(GalleryError, match="bad.png"):
                shrink(tmp_path / "bad.png", 128, still=False)
            with pytest.raises(GalleryError):
                blind_image(tmp_path / "bad.png", tmp_path / "a.png")


@pytest.mark.parametrize("reward", ["tests.files.test_readers:Edits", "tests.files.test_readers:Pairs"])
def test_an_edit_whose_source_cannot_be_read_fails_alone(reward, folder, tmp_path, capsys):
    names = ("plain.png", "transparent.png", "palette.png", "turned.png")
    sources = ("plain.png", "none.png", "clip.gif", "second-image.jpg")
    for name in names:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    lines = [json.dumps({"file_name": n, "source": str(folder / s)}) for n, s in zip(names, sources, strict=True)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    with pytest.raises(SystemExit):
        main(["score", str(tmp_path), "--reward", reward, "--no-cache", "--json", "--out", str(tmp_path / "o.jsonl")])
    scored = {row["file"].rpartition("/")[2]: row for row in map(json.loads, (tmp_path / "o.jsonl").open())}
    rows = diffrl.score(
        [tmp_path / name for name in names], "", [reward], sources=[str(folder / name) for name in sources]
    )
    for name, row in zip(names, rows, strict=True):
        score = scored[name]["rewards"][reward]
        assert score["ok"] == (name in ("plain.png", "turned.png")) == (row["error"] is None)
        assert score["ok"] is False or score["raw"] == row[reward]
    assert "none.png" in rows[1]["error"] and "4 frames" in rows[2]["error"]


class Edits(Seen):
    """How far the mean of a sample is from that of its source."""

    spec = ScorerSpec("edits", "difference", (0.0, 255.0), uses_prompt=False, uses_source=True)

    def __call__(self, batch):
        pairs = zip(batch.media, batch.sources, strict=True)
        return output_of_rows([(abs(float(a.double().mean() - b.double().mean())), {}, None) for a, b in pairs])


class Pairs(Edits):
    """The same, asked for a group."""

    spec = ScorerSpec("pairs", "difference", (0.0, 255.0), uses_prompt=False, uses_source=True, scope="group")


def test_a_damaged_file_is_read_or_refused_and_its_header_says_what_it_will_be(folder, tmp_path):
    random = np.random.default_rng(0)
    for name in FILES:
        data = bytearray((folder / name).read_bytes())
        for place in random.integers(0, max(1, len(data)), 5) if data else ():
            data[place] = random.integers(256)
        path = tmp_path / name
        path.write_bytes(data)
        seen = peek(path)
        try:
            media, _ = open_media(path)
        except RewardError as error:
            assert name in str(error)
        else:
            assert seen.kind == ("video" if media.ndim == 4 else "image"), name
