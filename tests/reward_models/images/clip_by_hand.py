"""CLIP once more, from its papers and the tensors of a checkpoint alone: no layers of transformers or open_clip."""

import torch
from PIL import Image
from torch.nn import functional
from torchvision import transforms

ACTIVATIONS = {"quick_gelu": lambda x: x * torch.sigmoid(1.702 * x), "gelu": functional.gelu}
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def as_image(picture):
    return Image.fromarray(picture.permute(1, 2, 0).numpy())


def torchvision_crop(picture, side):
    """OpenAI's own preprocessing of a uint8 image (3, H, W)."""
    steps = [
        transforms.Resize(side, interpolation=transforms.InterpolationMode.BICUBIC),
        transforms.CenterCrop(side),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
    return transforms.Compose(steps)(as_image(picture))


def norm(x, state, name, eps=1e-5):
    return functional.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)


def linear(x, state, name):
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def attention(queries, keys, values, heads, allowed=None):
    """Of matrices (L, W), (K, W), (K, W): head by head."""
    outputs = []
    for q, k, v in zip(queries.chunk(heads, 1), keys.chunk(heads, 1), values.chunk(heads, 1), strict=True):
        scores = q @ k.T / q.shape[1] ** 0.5
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        outputs.append(scores.softmax(-1) @ v)
    return torch.cat(outputs, 1)


def encoder(x, state, prefix, heads, activation, allowed=None):
    layer = 0
    while f"{prefix}.{layer}.mlp.fc1.weight" in state:
        name = f"{prefix}.{layer}"
        y = norm(x, state, f"{name}.layer_norm1")
        q, k, v = (linear(y, state, f"{name}.self_attn.{part}_proj") for part in "qkv")
        x = x + linear(attention(q, k, v, heads, allowed), state, f"{name}.self_attn.out_proj")
        y = ACTIVATIONS[activation](linear(norm(x, state, f"{name}.layer_norm2"), state, f"{name}.mlp.fc1"))
        x = x + linear(y, state, f"{name}.mlp.fc2")
        layer += 1
    return x


def image_embedding(pixels, state, heads=3, activation="quick_gelu"):
    """(D,) of unit length, from normalised pixels (3, S, S)."""
    weight = state["vision_model.embeddings.patch_embedding.weight"]
    size = weight.shape[-1]
    patches = [
        (pixels[:, top : top + size, left : left + size] * weight).sum((1, 2, 3))
        for top in range(0, pixels.shape[1], size)
        for left in range(0, pixels.shape[2], size)
    ]
    x = torch.stack([state["vision_model.embeddings.class_embedding"], *patches])
    x = norm(x + state["vision_model.embeddings.position_embedding.weight"], state, "vision_model.pre_layrnorm")
    x = encoder(x, state, "vision_model.encoder.layers", heads, activation)
    return functional.normalize(
        state["visual_projection.weight"] @ norm(x[0], state, "vision_model.post_layernorm"), dim=0
    )


def text_embedding(tokens, state, heads=2, activation="quick_gelu"):
    """(D,) of unit length, from token numbers that end with the end token, without padding."""
    x = state["text_model.embeddings.token_embedding.weight"][tokens]
    x = x + state["text_model.embeddings.position_embedding.weight"][: len(tokens)]
    allowed = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    x = encoder(x, state, "text_model.encoder.layers", heads, activation, allowed)
    return functional.normalize(
        state["text_projection.weight"] @ norm(x[-1], state, "text_model.final_layer_norm"), dim=0
    )


def from_open_clip(state):
    """The same tensors under transformers' names, for the functions above."""
    towers = {
        "visual.transformer.resblocks": "vision_model.encoder.layers",
        "transformer.resblocks": "text_model.encoder.layers",
    }
    parts = {
        "ln_1": "layer_norm1",
        "ln_2": "layer_norm2",
        "mlp.c_fc": "mlp.fc1",
        "mlp.c_proj": "mlp.fc2",
        "attn.out_proj": "self_attn.out_proj",
    }
    made = {
        "vision_model.embeddings.class_embedding": state["visual.class_embedding"],
        "vision_model.embeddings.position_embedding.weight": state["visual.positional_embedding"],
        "vision_model.embeddings.patch_embedding.weight": state["visual.conv1.weight"],
        "visual_projection.weight": state["visual.proj"].T,
        "text_model.embeddings.token_embedding.weight": state["token_embedding.weight"],
        "text_model.embeddings.position_embedding.weight": state["positional_embedding"],
        "text_projection.weight": state["text_projection"].T,
    }
    for end in ("weight", "bias"):
        made[f"vision_model.pre_layrnorm.{end}"] = state[f"visual.ln_pre.{end}"]
        made[f"vision_model.post_layernorm.{end}"] = state[f"visual.ln_post.{end}"]
        made[f"text_model.final_layer_norm.{end}"] = state[f"ln_final.{end}"]
        for ours, theirs in towers.items():
            layer = 0
            while f"{ours}.{layer}.ln_1.weight" in state:
                for old, new in parts.items():
                    made[f"{theirs}.{layer}.{new}.{end}"] = state[f"{ours}.{layer}.{old}.{end}"]
                for letter, piece in zip("qkv", state[f"{ours}.{layer}.attn.in_proj_{end}"].chunk(3), strict=True):
                    made[f"{theirs}.{layer}.self_attn.{letter}_proj.{end}"] = piece
                layer += 1
    return made
