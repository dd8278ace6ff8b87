"""Judges of edits against CLIP written out by hand and against numpy, and who gets the source to see."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import CLIPTokenizer

import diffrl
from diffrl.errors import ConfigError
from diffrl.records import Prompt
from diffrl.rewards.score import WeightedScorer, score
from diffrl.training.scorers import require_metadata
from reward_models import RewardBatch, RewardError, load_reward, score_media
from reward_models.cli import main
from reward_models.media import to_pil
from tests.reward_models.images import clip_by_hand as hand
from tests.reward_models.images.test_clip_score import pictures, transformers_crop
from tests.reward_models.tiny_clip import save_clip

WORDS = [
    {"source_caption": "a red circle", "target_caption": "a blue square"},
    {"source_caption": "the green triangle", "target_caption": "two green circle"},
    {"source_caption": "a red circle", "target_caption": "a red circle and the blue square"},
]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = save_clip(tmp_path_factory.mktemp("clip"))
    return folder, load_file(folder / "model.safetensors"), CLIPTokenizer.from_pretrained(folder)


def batch(sizes=((37, 53), (28, 28), (37, 53)), metadata=WORDS):
    edits = pictures(6, 37, 53)[3:]
    sources = [pictures(1, *size)[0] if row else pictures(3, *size)[1] for row, size in enumerate(sizes)]
    return RewardBatch(edits, ["edit it"] * 3, metadata, sources=sources)


def embedded(clip, picture):
    return hand.image_embedding(transformers_crop(picture), clip[1])


def test_preservation_is_the_cosine_of_edit_and_source(clip):
    given = batch()
    output = load_reward("preservation", model=str(clip[0]))(given)
    pairs = zip(given.media, given.sources, strict=True)
    wanted = torch.stack([embedded(clip, edit) @ embedded(clip, source) for edit, source in pairs])
    torch.testing.assert_close(output.raw, wanted, rtol=1e-4, atol=1e-5)
    assert wanted.std() > 0.01


def test_preservation_in_pixels_is_one_less_their_difference():
    given = batch()
    output = load_reward("preservation", features="pixels")(given)
    for row, (edit, source) in enumerate(zip(given.media.numpy(), given.sources, strict=True)):
        reduced = [
            np.array([[block.mean((1, 2)) for block in line] for line in cells(one)]) for one in (edit, source.numpy())
        ]
        difference = np.sqrt(((reduced[0] - reduced[1]) ** 2).mean()) / 255
        assert float(output.raw[row]) == pytest.approx(1 - difference, abs=1e-5)
    same = RewardBatch(given.media, given.prompts, sources=list(given.media))
    assert load_reward("preservation", features="pixels")(same).raw.tolist() == [1.0] * 3


@pytest.mark.parametrize("features", ["pixels", "clip"])
def test_of_a_clip_the_first_frame_is_compared_and_video_mean_compares_others(features, clip):
    options = {"features": features} | ({"model": str(clip[0])} if features == "clip" else {})
    given = batch()
    frames = [given.media, given.media.flip(0), given.media.roll(1, 0)]
    clips = RewardBatch(torch.stack(frames, 1), given.prompts, fps=8.0, sources=given.sources)
    scorer = load_reward("preservation", **options)
    each = [scorer(RewardBatch(one, given.prompts, sources=given.sources)).raw for one in frames]
    torch.testing.assert_close(scorer(clips).raw, each[0])
    over = load_reward("video_mean", reward="preservation", reward_options=options, frames=3)
    torch.testing.assert_close(over(clips).raw, torch.stack(each).mean(0))
    assert not torch.allclose(each[0], each[1], atol=1e-3)
    assert all(pair.good.source is not None for pair in over.contrasts())
    none = RewardBatch(clips.media[:, :0], given.prompts, fps=8.0, sources=given.sources)
    assert scorer(none).raw.isnan().all() and set(scorer(none).errors) == {"the clip has no frames"}


def cells(picture, side=32):
    """An image (3, H, W) cut as adaptive pooling cuts it."""
    _, height, width = picture.shape

    def bounds(size):
        return [(i * size // side, -(-(i + 1) * size // side)) for i in range(side)]

    return [[picture[:, a:b, c:d].astype(float) for c, d in bounds(width)] for a, b in bounds(height)]


def test_edit_direction_is_the_cosine_of_both_changes(clip):
    given = batch()
    output = load_reward("edit_direction", model=str(clip[0]))(given)
    _, state, tokenizer = clip
    wanted = []
    for edit, source, words in zip(given.media, given.sources, WORDS, strict=True):
        tokens = [tokenizer(text).input_ids for text in words.values()]
        texts = [hand.text_embedding(t if len(t) <= 17 else t[:16] + t[-1:], state) for t in tokens]
        moved, meant = embedded(clip, edit) - embedded(clip, source), texts[1] - texts[0]
        wanted.append(moved @ meant / moved.norm() / meant.norm())
    torch.testing.assert_close(output.raw, torch.stack(wanted), rtol=1e-3, atol=1e-4)
    same = RewardBatch(given.media, given.prompts, WORDS, sources=list(given.media))
    assert load_reward("edit_direction", model=str(clip[0]))(same).raw.tolist() == [0.0] * 3


def test_sources_are_read_for_the_scorers_that_look_at_them(tmp_path):
    """Files of the prompts, once for all samples of one; another scorer beside it is not given any."""
    sources = pictures(2, 24, 24)
    for row, source in enumerate(sources):
        to_pil(source).save(tmp_path / f"{row}.png")
    prompts = [Prompt("edit it", {}, str(tmp_path / f"{row}.png")) for row in (0, 1, 0, 1)]
    edits = torch.stack([sources[0], sources[0], sources[1], sources[1]])
    seen = []
    plain = load_reward("contrast")

    class Watched:
        spec = plain.spec

        def __call__(self, given):
            seen.append(given.sources)
            return plain(given)

    scorers = [
        WeightedScorer("kept", load_reward("preservation", features="pixels")),
        WeightedScorer("seen", Watched()),
    ]
    kept = score(scorers, edits, prompts, [0, 1, 2, 3]).raw["kept"]
    assert kept[0] == kept[3] == 1.0 and kept[1] == kept[2] < 1.0
    assert all(len(given) == 0 for given in seen)
    require_metadata(scorers, prompts, "prompts.train")
    with pytest.raises(
        ConfigError, match="prompts.train must name an image to edit with every prompt, for the reward k"
    ):
        require_metadata(scorers, [*prompts, Prompt("edit it")], "prompts.train")


def test_without_a_source_there_is_nothing_to_compare():
    scorer = load_reward("preservation", features="pixels")
    with pytest.raises(RewardError, match="compares samples with the images that they are edits of. Got none"):
        scorer(RewardBatch(pictures(2, 9, 9), ["a", "b"]))
    with pytest.raises(RewardError, match="sources must have one entry a sample. Got 1 for 2"):
        RewardBatch(pictures(2, 9, 9), ["a", "b"], sources=list(pictures(1, 9, 9)))
    with pytest.raises(RewardError, match="sources must be uint8 RGB of shape"):
        RewardBatch(pictures(1, 9, 9), ["a"], sources=[torch.zeros(3, 9, 9)])


def test_files_name_the_image_that_they_are_edits_of(tmp_path):
    edits, sources = pictures(4, 20, 30)[:2], pictures(4, 20, 30)[2:]
    for row in range(2):
        to_pil(edits[row]).save(tmp_path / f"{row}.png")
        (tmp_path / "from").mkdir(exist_ok=True)
        to_pil(sources[row]).save(tmp_path / "from" / f"{row}.png")
    lines = [{"file": f"{row}.png", "prompt": "edit it", "source": f"from/{row}.png"} for row in range(2)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    wanted = score_media(
        load_reward("preservation", features="pixels"),
        [tmp_path / f"{row}.png" for row in range(2)],
        ["edit it"] * 2,
        sources=[tmp_path / "from" / f"{row}.png" for row in range(2)],
    ).raw.tolist()

    files, origins = ([tmp_path / folder / f"{row}.png" for row in range(2)] for folder in (".", "from"))
    rows = diffrl.score(files, rewards=[load_reward("preservation", features="pixels")], sources=origins)
    assert [row["preservation"] for row in rows] == pytest.approx(wanted)

    def scored(name):
        out, files = tmp_path / f"{name}.jsonl", [str(tmp_path / f"{row}.png") for row in range(2)]
        options = ["--option", "preservation.features=pixels", "--cache", str(tmp_path / "cache"), "--out", str(out)]
        with pytest.raises(SystemExit) as end:
            main(["score", *files, "--reward", "preservation", *options])
        assert not end.value.code
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        return [row["rewards"]["preservation"]["raw"] for row in rows]

    assert scored("first") == pytest.approx(wanted)
    Image.new("RGB", (30, 20), "white").save(tmp_path / "from" / "1.png")  # the score of before is not its score
    again = scored("again")
    assert again[0] == pytest.approx(wanted[0]) and again[1] != pytest.approx(wanted[1])
