"""The detector and the colours on tiny random weights, against transformers' own processing called by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoTokenizer,
    CLIPImageProcessorPil,
    CLIPModel,
    Mask2FormerForUniversalSegmentation,
    Mask2FormerImageProcessor,
)

from reward_models import RewardBatch, RewardError, load_reward
from reward_models.images.geneval_rules import COLORS, Detection, judge, kept, read_conditions
from reward_models.images.geneval_vision import cut_out, instances
from reward_models.media import to_pil
from tests.reward_models.tiny_basic import load_geneval, save_mask2former

ONE = {"tag": "single_object", "include": [{"class": "clock", "count": 1}]}
MANY = {
    "tag": "position",
    "include": [
        {"class": "clock", "count": 2, "color": "red"},
        {"class": "airplane", "count": 1, "position": ["left of", 0]},
        {"class": "tv", "count": 1, "position": ["above", 1]},
    ],
    "exclude": [{"class": "person", "count": 1}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("geneval")


@pytest.fixture(scope="module")
def scorer(folder):
    return load_geneval("geneval", folder, threshold=0.2)


def random_pictures(count=3, height=61, width=47, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, height, width), generator=generator, dtype=torch.uint8)


def outputs_by_hand(folder, picture):
    """Raw outputs at a shorter side of 64 and the size of the model's input."""
    processor = Mask2FormerImageProcessor.from_pretrained(folder / "detector")
    model = Mask2FormerForUniversalSegmentation.from_pretrained(folder / "detector").eval()
    inputs = processor(images=[to_pil(picture)], size={"shortest_edge": 64, "longest_edge": 106}, return_tensors="pt")
    with torch.no_grad():
        return processor, model.config, model(**inputs), inputs["pixel_values"].shape[-2:]


def test_detections_one_query_and_class_at_a_time(scorer, folder):
    picture = random_pictures(1)[0]
    _, config, outputs, size = outputs_by_hand(folder, picture)
    probabilities = outputs.class_queries_logits[0].softmax(-1)
    pairs = sorted(
        ((probabilities[q, c].item(), q, c) for q in range(len(probabilities)) for c in range(len(config.id2label))),
        reverse=True,
    )
    expected = []
    for probability, query, label in pairs[: len(probabilities)]:
        logits = outputs.masks_queries_logits[0, query][None, None]
        for shape in (size, (61, 47)):
            logits = torch.nn.functional.interpolate(logits, shape, mode="bilinear")
        inside = logits[0, 0].numpy() > 0
        if inside.any():
            score = probability * logits[0, 0].sigmoid().numpy()[inside].mean()
            rows, columns = np.nonzero(inside)
            box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            expected += [(config.id2label[label], score, box, inside)] if score > 0.2 else []
    found = scorer.detector(picture[None], 0.2)[0]
    assert len(found) == len(expected) > 3
    for item, (name, score, box, inside) in zip(found, expected, strict=True):
        assert (item.name, item.box) == (name, box) and item.score == pytest.approx(score, abs=1e-5)
        assert np.array_equal(item.mask, inside)


def test_empty_masks_and_no_object_are_no_objects():
    classes = torch.tensor([[9.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.0, 0.0, 9.0]])  # the last class is "no object"
    masks = torch.full((3, 4, 4), -1.0)
    masks[1:, 1:3, 2:] = 4.0
    found = instances(classes, masks, [(8, 8)], 0.3)
    assert len(found) == 1 and found[0][0] == 0 and 0.3 < found[0][1] < 1


def test_cut_out_is_pils_composite():
    picture = random_pictures(1)[0]
    mask = np.random.default_rng(0).random((61, 47)) < 0.5
    item = Detection("clock", 0.5, (5, 7, 31, 40), mask)
    grey = Image.new("RGB", (47, 61), "#999")
    expected = Image.composite(to_pil(picture), grey, Image.fromarray(mask)).crop((5, 7, 31, 40))
    assert np.array_equal(np.asarray(to_pil(cut_out(picture, item))), np.asarray(expected))
    bare = cut_out(picture, replace(item, mask=None))
    assert torch.equal(bare, picture[:, 7:40, 5:31])


def test_colours_are_zero_shot_clip(scorer, folder):
    picture = random_pictures(1, seed=5)[0]
    picture[0] //= 4
    masks = [np.zeros((61, 47), dtype=bool) for _ in range(2)]
    masks[0][5:30, 3:20], masks[1][31:60, 22:47] = True, True
    items = [Detection("clock", 0.5, b, m) for b, m in zip([(3, 5, 20, 30), (22, 31, 47, 60)], masks, strict=True)]
    model = CLIPModel.from_pretrained(folder / "clip").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "clip")
    processor = CLIPImageProcessorPil.from_pretrained(folder / "clip")
    expected = []
    with torch.no_grad():
        columns = []
        for color in COLORS:
            texts = [
                f"a photo of a {color} clock",
                f"a photo of a {color}-colored clock",
                f"a photo of a {color} object",
            ]
            tokens = tokenizer(texts, padding="max_length", truncation=True, max_length=17, return_tensors="pt")
            hidden = model.text_projection(model.text_model(**tokens).pooler_output)
            mean = (hidden / hidden.norm(dim=-1, keepdim=True)).mean(0)
            columns.append(mean / mean.norm())
        for item in items:
            crop = to_pil(cut_out(picture, item))
            pixels = processor(images=crop, return_tensors="pt")["pixel_values"]
            image = model.visual_projection(model.vision_model(pixels).pooler_output)[0]
            expected.append(COLORS[int((torch.stack(columns) @ image).argmax())])
    assert scorer.colors(picture, items, "clock") == expected
    with torch.no_grad():
        assert torch.allclose(scorer.colors._embeddings("clock"), torch.stack(columns), atol=1e-6)
    assert len(COLORS) == 10


def test_scores_are_the_rules_on_the_detections(scorer):
    media = random_pictures(4)
    metadata = [ONE, MANY, MANY, {**MANY, "tag": "counting"}]
    output = scorer(RewardBatch(media, ["a"] * 4, metadata))
    for row, (picture, meta) in enumerate(zip(media, metadata, strict=True)):
        conditions = read_conditions(meta)
        objects = kept(scorer.detector(picture[None], 0.2)[0], 0.9 if meta["tag"] == "counting" else 0.2, 16)
        parts = judge(conditions, objects, lambda items, name, p=picture: scorer.colors(p, items, name))
        assert output.raw[row].item() == pytest.approx(parts["partial"])
        assert {name: v[row].item() for name, v in output.parts.items() if name in parts} == pytest.approx(parts)
    assert torch.isnan(output.parts["position"][0]) and not torch.isnan(output.parts["position"][1])
    assert output.raw[3] < 0.5 and output.raw[0] == 1


def test_strict_is_the_part(scorer, folder):
    media, metadata = random_pictures(3), [ONE, MANY, MANY]
    whole = scorer(RewardBatch(media, ["a"] * 3, metadata))
    strict = load_reward(
        "geneval_strict", model=str(folder / "detector"), clip_model=str(folder / "clip"), side=64, threshold=0.2
    )
    assert torch.equal(strict(RewardBatch(media, ["a"] * 3, metadata)).raw, whole.parts["strict"])
    assert strict.spec.name == "geneval_strict"


def test_half_precision_is_close(folder):
    options = {"model": str(folder / "detector"), "clip_model": str(folder / "clip"), "side": 64}
    media = random_pictures(2)
    exact = load_reward("geneval", **options).detector(media, 0.1)
    half = load_reward("geneval", **options, dtype="bfloat16").detector(media, 0.1)
    for a, b in zip(exact, half, strict=True):
        scores = [sorted((item.score for item in found), reverse=True)[:3] for found in (a, b)]
        assert scores[1] == pytest.approx(scores[0], abs=0.03)


def test_what_cannot_be_judged_is_nan_for_its_sample(scorer):
    metadata = [ONE, {"include": [{"class": "unicorn", "count": 1}]}, {"include": [{"class": "clock"}]}]
    output = scorer(RewardBatch(random_pictures(), ["a"] * 3, metadata))
    assert output.ok.tolist() == [True, False, False] and torch.isnan(output.raw[1:]).all()
    assert "Got 'unicorn'" in output.errors[1] and "whole count" in output.errors[2]


def test_refusals(scorer, tmp_path):
    for option in ({"threshold": 0.0}, {"counting_threshold": 1.0}, {"max_objects": 0}, {"position_threshold": -0.1}):
        with pytest.raises(RewardError, match=next(iter(option))):
            load_reward("geneval", **option)
    with pytest.raises(RewardError, match="There is no directory"):
        load_reward("geneval", model=str(tmp_path / "none"))
    with pytest.raises(RewardError, match="dtype must be one of"):
        load_reward("geneval", dtype="int8")


def test_weights_that_are_missing_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = save_mask2former(tmp_path)
    state = load_file(folder / "model.safetensors")
    state.pop("class_predictor.weight")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RewardError, match=r"class_predictor\.weight"):
        load_reward("geneval", model=str(folder))
