"""The aesthetic predictor against CLIP by hand and one collapsed affine map."""

import json

import pytest
import torch
from safetensors.torch import load_file

from reward_models import RewardBatch, RewardError, load_reward
from tests.reward_models.images import clip_by_hand as hand
from tests.reward_models.images.test_clip_score import pictures
from tests.reward_models.tiny_clip import SIDE, aesthetic, head_state, save_clip

FILE = "sac+logos+ava1-l14-linearMSE.pth"


def affine_map(state):
    """(w, b) of w . x + b, to which five linear layers amount, in float64."""
    layers = [[state[f"layers.{number}.{part}"].double() for part in ("weight", "bias")] for number in (0, 2, 4, 6, 7)]
    weight, bias = layers[0]
    for matrix, shift in layers[1:]:
        weight, bias = matrix @ weight, matrix @ bias + shift
    return weight[0], bias[0]


@pytest.mark.parametrize("size", [(37, 53), (29, 90)])
def test_scores_are_an_affine_map_of_the_unit_embedding(tmp_path, size):
    scorer, media = aesthetic(tmp_path), pictures(4, *size)
    raw = scorer(RewardBatch(media, ["x", "", "y", "z"])).raw
    weight, bias = affine_map(torch.load(tmp_path / "clip" / FILE))
    state = load_file(tmp_path / "clip" / "model.safetensors")
    wanted = [
        hand.image_embedding(hand.torchvision_crop(picture, SIDE), state).double() @ weight + bias for picture in media
    ]
    wanted = torch.stack(wanted).float()
    assert wanted.std() > 0.05
    torch.testing.assert_close(raw, wanted, rtol=1e-4, atol=1e-4)


def test_the_text_tower_is_not_kept(tmp_path):
    names = dict(aesthetic(tmp_path).towers.model.named_parameters())
    assert names and not any(name.startswith("text") for name in names)


def test_other_weights_are_refused(tmp_path):
    place = save_clip(tmp_path)
    for state, sentence in (
        (head_state(23), "of another shape: layers.0.weight"),
        ({name.replace("layers", "mlp"): value for name, value in head_state(19).items()}, "missing: layers.0.weight"),
    ):
        torch.save(state, tmp_path / FILE)
        with pytest.raises(RewardError, match=f"do not fit the reward aesthetic: {sentence}"):
            load_reward("aesthetic", checkpoint=str(tmp_path), model=str(place))
    with pytest.raises(RewardError, match="needs checkpoint=PATH of sac.*curl -L"):
        load_reward("aesthetic", model=str(place))


def test_a_clip_with_the_wrong_activation_is_refused(tmp_path):
    aesthetic(tmp_path)
    place = tmp_path / "clip"
    config = json.loads((place / "config.json").read_text())
    config["vision_config"]["hidden_act"] = "gelu"
    (place / "config.json").write_text(json.dumps(config))
    with pytest.raises(RewardError, match=r"whose activation is quick_gelu.*has gelu"):
        load_reward("aesthetic", checkpoint=str(place), model=str(place))
