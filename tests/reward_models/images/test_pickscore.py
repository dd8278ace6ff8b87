"""PickScore against CLIP written out by hand: the learnt scale, the other activation, and half precision."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import CLIPTokenizer

from reward_models import RewardBatch, RewardError, load_reward
from tests.reward_models.images import clip_by_hand as hand
from tests.reward_models.images.test_clip_score import pictures, transformers_crop
from tests.reward_models.tiny_clip import clip_tokenizer, pickscore, processor_config, save_clip

PROMPTS = ["a red circle", "two blue squares, and a green triangle", "a red circle"]


def expected(folder, media, prompts):
    """exp(logit_scale) cos, from the tensors of the file."""
    state, tokenizer = load_file(folder / "model.safetensors"), CLIPTokenizer.from_pretrained(folder)
    scores = []
    for picture, prompt in zip(media, prompts, strict=True):
        tokens = tokenizer(prompt).input_ids
        tokens = tokens if len(tokens) <= 17 else tokens[:16] + [tokenizer.eos_token_id]
        image = hand.image_embedding(transformers_crop(picture), state, activation="gelu")
        scores.append(image @ hand.text_embedding(tokens, state, activation="gelu"))
    return math.exp(float(state["logit_scale"])) * torch.stack(scores)


def test_scores_are_scaled_cosines_of_clip_by_hand(tmp_path):
    scorer, media = pickscore(tmp_path), pictures(3, 37, 53)
    raw = scorer(RewardBatch(media, PROMPTS)).raw
    torch.testing.assert_close(raw, expected(tmp_path / "pickscore", media, PROMPTS), rtol=1e-4, atol=1e-3)
    assert raw.abs().max() > 5  # about 100 times a cosine


def test_the_activation_is_the_models_own(tmp_path):
    """A file says which; CLIP's two give different scores."""
    raw = pickscore(tmp_path)(RewardBatch(pictures(3, 28, 28), PROMPTS)).raw
    place = tmp_path / "pickscore"
    config = json.loads((place / "config.json").read_text())
    for tower in ("text_config", "vision_config"):
        config[tower]["hidden_act"] = "quick_gelu"
    (place / "config.json").write_text(json.dumps(config))
    other = load_reward("pickscore", model=str(place), processor=str(place))
    assert (other(RewardBatch(pictures(3, 28, 28), PROMPTS)).raw - raw).abs().max() > 0.01


def test_half_precision_files_compute_in_float32_unless_told(tmp_path):
    from transformers import CLIPModel

    place = save_clip(tmp_path / "half", "gelu")
    CLIPModel.from_pretrained(place, dtype=torch.float16).save_pretrained(place)
    scorer = load_reward("pickscore", model=str(place), processor=str(place))
    assert {value.dtype for value in scorer.towers.model.parameters()} == {torch.float32}
    stored = float(load_file(place / "model.safetensors")["logit_scale"])
    assert scorer.towers.scale == pytest.approx(math.exp(stored), rel=1e-6)  # float16 would say 100.0625


def test_the_processor_may_live_elsewhere(tmp_path):
    batch = RewardBatch(pictures(3, 37, 53), PROMPTS)
    raw = pickscore(tmp_path)(batch).raw
    elsewhere = tmp_path / "processor"
    elsewhere.mkdir()
    clip_tokenizer(elsewhere)
    processor_config(elsewhere)
    for path in (tmp_path / "pickscore").glob("*token*"):
        path.unlink()
    (tmp_path / "pickscore" / "preprocessor_config.json").unlink()
    scorer = load_reward("pickscore", model=str(tmp_path / "pickscore"), processor=str(elsewhere))
    assert torch.equal(scorer(batch).raw, raw)
    with pytest.raises(RewardError, match="which the reward pickscore needs, cannot be loaded"):
        load_reward("pickscore", model=str(tmp_path / "pickscore"), processor=str(tmp_path / "pickscore"))
