"""CLIPScore against CLIP written out by hand, and what its loaders refuse."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file
from transformers import CLIPTokenizer

from reward_models import RewardBatch, RewardError, load_reward
from reward_models.images.clip_preprocess import CenterCrop, center_crop_of, pad_to_square
from tests.reward_models.images import clip_by_hand as hand
from tests.reward_models.tiny_clip import SIDE, clip_score, processor_config, save_clip, save_hps

PROMPTS = ["a red circle", "Two blue\n squares!", "a red circle", ""]


def noise(count, height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, height, width), generator=generator, dtype=torch.uint8)


def pictures(count, height, width):
    """Noise of another strength, on another colour, each."""
    generator = torch.Generator().manual_seed(1)
    color = 200 * torch.rand(count, 3, 1, 1, generator=generator)
    strength = torch.rand(count, 1, 1, 1, generator=generator)
    return (color + strength * noise(count, height, width)).clamp(0, 255).round().to(torch.uint8)


def transformers_crop(picture):
    """As transformers crops: half a pixel down; checked on its own below."""
    return CenterCrop(SIDE, offset="down")(picture[None])[0]


def expected(folder, media, prompts):
    """Cosines by hand, prompt by prompt and without padding."""
    state, tokenizer = load_file(folder / "model.safetensors"), CLIPTokenizer.from_pretrained(folder)
    scores = []
    for picture, prompt in zip(media, prompts, strict=True):
        tokens = tokenizer(prompt).input_ids
        tokens = tokens if len(tokens) <= 17 else tokens[:16] + [tokenizer.eos_token_id]
        scores.append(hand.image_embedding(transformers_crop(picture), state) @ hand.text_embedding(tokens, state))
    return torch.stack(scores)


@pytest.mark.parametrize("size", [(37, 53), (28, 28)])
def test_scores_are_cosines_of_clip_by_hand(tmp_path, size):
    scorer, media = clip_score(tmp_path), pictures(4, *size)
    output = scorer(RewardBatch(media, PROMPTS))
    wanted = expected(tmp_path / "clip", media, PROMPTS)
    assert wanted.std() > 0.05  # weights for which everything is alike would show nothing
    torch.testing.assert_close(output.raw, wanted, rtol=1e-4, atol=1e-5)
    assert output.ok.all()


def test_a_long_prompt_is_cut_and_keeps_its_end_token(tmp_path):
    scorer, media = clip_score(tmp_path), pictures(2, 40, 40)
    prompts = ["a red circle in " + "blue squares " * 30, "a red circle in b"]
    raw = scorer(RewardBatch(media, prompts)).raw
    torch.testing.assert_close(raw, expected(tmp_path / "clip", media, prompts), rtol=1e-4, atol=1e-5)


def test_equal_prompts_are_embedded_once(tmp_path, monkeypatch):
    scorer, media = clip_score(tmp_path), pictures(4, 37, 53)
    seen = []
    texts = scorer.towers.texts
    monkeypatch.setattr(scorer.towers, "texts", lambda prompts: seen.append(list(prompts)) or texts(prompts))
    scorer(RewardBatch(media, PROMPTS))
    assert seen == [["a red circle", "Two blue\n squares!", ""]]


def test_autocast_of_the_caller_changes_nothing(tmp_path):
    scorer, batch = clip_score(tmp_path), RewardBatch(pictures(4, 37, 53), PROMPTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(scorer(batch).raw, scorer(batch).raw)
        inside = scorer(batch).raw
    assert torch.equal(inside, scorer(batch).raw)


def test_open_clip_gives_the_cosines_by_hand(tmp_path):
    import open_clip

    name = save_hps(tmp_path, "open_clip_pytorch_model.bin")
    scorer, media = load_reward("clip_score", engine="open_clip", model=name), pictures(4, 37, 53)
    state = hand.from_open_clip(torch.load(tmp_path / "open_clip_pytorch_model.bin")["state_dict"])
    tokenizer = open_clip.SimpleTokenizer()
    wanted = []
    for picture, prompt in zip(media, PROMPTS, strict=True):
        tokens = [tokenizer.sot_token_id, *tokenizer.encode(prompt), tokenizer.eot_token_id]
        image = hand.image_embedding(hand.torchvision_crop(picture, SIDE), state, activation="gelu")
        wanted.append(image @ hand.text_embedding(tokens, state, activation="gelu"))
    raw = scorer(RewardBatch(media, PROMPTS)).raw
    torch.testing.assert_close(raw, torch.stack(wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model, tag", [("ViT-L-14", "openai"), ("ViT-H-14", "dfn5b")])
def test_weights_trained_with_another_activation_are_refused(model, tag):
    with pytest.raises(RewardError, match=f"trained with QuickGELU.*Use model='{model}-quickgelu'"):
        load_reward("clip_score", engine="open_clip", model=model, pretrained=tag)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"engine": "tensorflow"}, "engine must be one of transformers, open_clip. Got 'tensorflow'"),
        ({"pretrained": "openai"}, "pretrained is for engine='open_clip'"),
        ({"engine": "open_clip", "model": "ViT-Z-1", "pretrained": "openai"}, "open_clip has no model 'ViT-Z-1'"),
        ({"engine": "open_clip", "model": "ViT-B-32"}, "needs pretrained=TAG.*laion2b"),
        ({"engine": "open_clip", "model": "ViT-B-32", "pretrained": "/nowhere.pt"}, "cannot load ViT-B-32"),
        ({"engine": "open_clip", "model": "hf-hub:a/b", "pretrained": "openai"}, "brings its own weights"),
    ],
)
def test_what_cannot_be_is_refused(options, sentence):
    with pytest.raises(RewardError, match=sentence):
        load_reward("clip_score", **options)


def test_a_missing_package_is_named(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RewardError, match=r"needs the package open_clip. Run: pip install 'diffrl\[clip\]'"):
        load_reward("clip_score", engine="open_clip")


class Payload:
    """Unpickled, it leaves a trace: what a hostile file would do."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return open, (self.trace, "w")


def test_a_pickle_is_not_opened(tmp_path, monkeypatch):
    clip_score(tmp_path)
    folder = tmp_path / "clip"
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Payload(tmp_path / "trace")}))
    opened = []
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: opened.append(args))
    with pytest.raises(RewardError, match="must hold its weights as safetensors. Got pytorch_model.bin, a pickle"):
        load_reward("clip_score", model=str(folder))
    assert not opened and not (tmp_path / "trace").exists()


def test_another_models_weights_are_refused(tmp_path):
    from transformers import BertConfig, BertModel

    folder = save_clip(tmp_path)
    small = dict(hidden_size=8, num_attention_heads=2, intermediate_size=8, num_hidden_layers=1, vocab_size=9)
    BertModel(BertConfig(**small)).save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "model.safetensors").replace(folder / "model.safetensors")
    with pytest.raises(RewardError, match="has no weights for .* another model"):
        load_reward("clip_score", model=str(folder))


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"size": 32, "crop_size": 32}, "makes 32 pixels.*takes 28"),
        ({"size": {"height": 28, "width": 30}}, "asks for something else"),
        ({"resample": 2}, "asks for something else"),
    ],
)
def test_foreign_preprocessing_is_refused(tmp_path, changes, sentence):
    folder = save_clip(tmp_path)
    processor_config(folder, **changes)
    with pytest.raises(RewardError, match=sentence):
        load_reward("clip_score", model=str(folder))


def test_a_tokenizer_that_would_make_all_prompts_alike_is_refused(tmp_path):
    folder = save_clip(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["eos_token_id"] = 49407  # transformers would read every prompt at its first token
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RewardError, match="tokenizer must be the model's.*ends texts with 189.*expects 49407"):
        load_reward("clip_score", model=str(folder))
    config["text_config"]["eos_token_id"] = 2  # what early files say, whatever the tokenizer
    (folder / "config.json").write_text(json.dumps(config))
    media = pictures(4, 28, 28)
    raw = load_reward("clip_score", model=str(folder))(RewardBatch(media, PROMPTS)).raw
    torch.testing.assert_close(raw, expected(folder, media, PROMPTS), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(61, 47), (300, 225), (9, 200)])
def test_cropping_is_torchvisions_and_transformers_to_the_bit(size, tmp_path):
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    media = noise(1, *size)
    torch.testing.assert_close(CenterCrop()(media)[0], hand.torchvision_crop(media[0], 224), rtol=0, atol=1e-6)
    pixels = CLIPImageProcessorPil()(hand.as_image(media[0]), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(CenterCrop(offset="down")(media), pixels, rtol=0, atol=1e-6)


def test_new_and_old_processor_files_mean_the_same(tmp_path):
    for number, sizes in enumerate(({}, {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}})):
        (tmp_path / str(number)).mkdir()
        processor_config(tmp_path / str(number), **sizes)
        assert center_crop_of(str(tmp_path / str(number)), "x") == CenterCrop(28, offset="down")


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", [(37, 53), (300, 225), (500, 3)])
def test_padding_is_torchvisions(size, antialias):
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as vision

    picture = noise(1, *size)[0]
    scale = 224 / max(size)
    height, width = (max(1, round(length * scale)) for length in size)
    resized = vision.resize(
        vision.to_tensor(hand.as_image(picture)), [height, width], InterpolationMode.BICUBIC, antialias=antialias
    )
    left, top = (224 - width) // 2, (224 - height) // 2
    padded = vision.pad(resized, [left, top, 224 - width - left, 224 - height - top])
    wanted = vision.normalize(padded, hand.MEAN, hand.STD)
    torch.testing.assert_close(pad_to_square(picture[None], 224, antialias)[0], wanted, rtol=0, atol=1e-5)
