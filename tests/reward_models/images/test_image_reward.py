"""ImageReward against BLIP's vision transformer and cross-attending BERT by hand, under the published names."""

import pytest
import torch
from torch.nn import functional

from reward_models import RewardBatch, RewardError, load_reward
from tests.reward_models.images import clip_by_hand as hand
from tests.reward_models.images.clip_by_hand import attention, linear, norm
from tests.reward_models.images.test_clip_score import pictures
from tests.reward_models.tiny_clip import BLIP, SIDE, bert_tokenizer, image_reward, image_reward_state

PROMPTS = ["a red circle", "Two blue squares and the green triangle", "a red circle", "red " * 60]
WORDS = [
    [2, 5, 6, 9, 3],  # [CLS] a red circle [SEP]
    [2, 15, 7, 10, 17, 13, 14, 8, 11, 3],  # square ##s
    [2, 5, 6, 9, 3],
    [2, *[6] * 33, 3],  # cut to 35
]


def eye(pixels, state, heads=3):
    """A pre-norm vision transformer, timm's, with epsilon 1e-6 and a norm at the end: (tokens, width)."""
    name = "blip.visual_encoder"
    weight = state[f"{name}.patch_embed.proj.weight"]
    patches = functional.unfold(pixels[None], 7, stride=7)[0].T @ weight.flatten(1).T
    patches = patches + state[f"{name}.patch_embed.proj.bias"]
    x = torch.cat([state[f"{name}.cls_token"][0], patches]) + state[f"{name}.pos_embed"][0]
    for layer in range(2):
        block = f"{name}.blocks.{layer}"
        q, k, v = linear(norm(x, state, f"{block}.norm1", 1e-6), state, f"{block}.attn.qkv").chunk(3, 1)
        x = x + linear(attention(q, k, v, heads), state, f"{block}.attn.proj")
        y = functional.gelu(linear(norm(x, state, f"{block}.norm2", 1e-6), state, f"{block}.mlp.fc1"))
        x = x + linear(y, state, f"{block}.mlp.fc2")
    return norm(x, state, f"{name}.norm", 1e-6)


def reader(tokens, picture, state, heads=4):
    """A post-norm BERT without token types: itself, the image, then the feed-forward layer: (L, width)."""
    name = "blip.text_encoder"
    x = state[f"{name}.embeddings.word_embeddings.weight"][tokens]
    x = x + state[f"{name}.embeddings.position_embeddings.weight"][: len(tokens)]
    x = norm(x, state, f"{name}.embeddings.LayerNorm", 1e-12)
    for layer in range(2):
        block = f"{name}.encoder.layer.{layer}"
        for kind, source in (("attention", x), ("crossattention", picture)):
            part = f"{block}.{kind}"
            source = x if kind == "attention" else source
            q, k, v = (
                linear(what, state, f"{part}.self.{which}")
                for what, which in ((x, "query"), (source, "key"), (source, "value"))
            )
            y = linear(attention(q, k, v, heads), state, f"{part}.output.dense")
            x = norm(x + y, state, f"{part}.output.LayerNorm", 1e-12)
        y = linear(functional.gelu(linear(x, state, f"{block}.intermediate.dense")), state, f"{block}.output.dense")
        x = norm(x + y, state, f"{block}.output.LayerNorm", 1e-12)
    return x


def expected(state, media, words):
    """Without padding: padded tokens must not be seen."""
    scores = []
    for picture, tokens in zip(media, words, strict=True):
        x = reader(tokens, eye(hand.torchvision_crop(picture, SIDE), state), state)[0]
        for number in (0, 2, 4, 6, 7):
            x = linear(x, state, f"mlp.layers.{number}")
        scores.append((x[0] - 0.16717362830052426) / 1.0333394966054072)
    return torch.stack(scores)


@pytest.mark.parametrize("size", [(61, 47), (28, 28)])
def test_scores_are_those_of_blip_by_hand(tmp_path, size):
    scorer, media = image_reward(tmp_path), pictures(4, *size)
    raw = scorer(RewardBatch(media, PROMPTS)).raw
    wanted = expected(image_reward_state(), media, WORDS)
    assert wanted.std() > 0.1 and (wanted[0] - wanted[2]).abs() > 0.01  # the same prompt, another image
    torch.testing.assert_close(raw, wanted, rtol=2e-4, atol=2e-4)


def test_what_the_score_does_not_need_may_be_left_out(tmp_path):
    scorer, batch = image_reward(tmp_path), RewardBatch(pictures(4, 37, 53), PROMPTS)
    unused = ("_proj.weight", "_proj.bias", "position_ids")
    state = {k: v for k, v in image_reward_state().items() if not (k.endswith(unused) and ".blocks." not in k)}
    assert len(state) == len(image_reward_state()) - 5
    torch.save(state, tmp_path / "ImageReward.pt")
    again = load_reward("image_reward", checkpoint=str(tmp_path), tokenizer=str(tmp_path / "bert"), config=BLIP)
    assert torch.equal(again(batch).raw, scorer(batch).raw)


def test_other_checkpoints_are_refused(tmp_path):
    tokenizer, path = str(bert_tokenizer(tmp_path / "bert")), tmp_path / "ImageReward.pt"
    state = image_reward_state()
    gone = "blip.text_encoder.encoder.layer.1.crossattention.self.key.weight"
    for changed, sentence in (
        ({k: v for k, v in state.items() if k != gone}, "missing: text.encoder.layer.1.crossattention.self.key.weight"),
        (state | {"blip.itm_head.weight": torch.ones(2)}, "unknown: blip.itm_head.weight"),
    ):
        torch.save(changed, path)
        with pytest.raises(RewardError, match=f"do not fit the reward image_reward: {sentence}"):
            load_reward("image_reward", checkpoint=str(path), tokenizer=tokenizer, config=BLIP)


def test_a_foreign_tokenizer_and_unknown_sizes_are_refused(tmp_path):
    small = {"vision": BLIP["vision"], "text": BLIP["text"] | {"vocab_size": 20}}
    state = image_reward_state()
    state["blip.text_encoder.embeddings.word_embeddings.weight"] = torch.ones(20, 32)
    torch.save(state, tmp_path / "ImageReward.pt")
    tokenizer = str(bert_tokenizer(tmp_path / "bert"))
    with pytest.raises(RewardError, match="tokenizer must be bert-base-uncased's.*the model knows 20"):
        load_reward("image_reward", checkpoint=str(tmp_path), tokenizer=tokenizer, config=small)
    for config, unknown in (({"visual": {}}, "visual"), ({"text": {"heads": 2}}, "heads")):
        with pytest.raises(RewardError, match=f"config holds 'vision' with .* Got {unknown}"):
            load_reward("image_reward", checkpoint=str(tmp_path), tokenizer=tokenizer, config=config)
