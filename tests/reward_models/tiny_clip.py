"""Tiny random models of the CLIP family, saved in the published layouts, and the scorers that load them."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from reward_models import Scorer, load_reward

CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
SIDE = 28
WORDS = ["a", "red", "blue", "green", "circle", "square", "triangle", "of", "and", "the", "two", "in"]
BLIP = {
    "vision": {
        "hidden_size": 24,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "image_size": SIDE,
        "patch_size": 7,
    },
    "text": {
        "vocab_size": 41,
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 40,
    },
}


def random_weights(shapes: dict[str, tuple[int, ...]], seed: int = 0, spread: float = 0.3) -> dict[str, torch.Tensor]:
    """Normal numbers; scales of layer norms are around 1."""
    generator = torch.Generator().manual_seed(seed)
    made = {name: spread * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    norms = ("norm", "LayerNorm", "ln_", "layrnorm")
    return {
        name: value + 1 if name.endswith(".weight") and value.ndim == 1 and any(n in name for n in norms) else value
        for name, value in made.items()
    }


def randomise(model: nn.Module, seed: int = 0, spread: float = 0.3) -> None:
    """Every parameter anew: the usual initialisation leaves too much at 0 and 1 for a mistake to show."""
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    new = random_weights(shapes, seed, spread)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(new[name])


def clip_tokenizer(folder: Path) -> None:
    """Letters and words that end in </w>, as CLIP's has; the end token has the largest number."""
    from transformers import CLIPTokenizer

    letters = [chr(code) for code in range(33, 127)]
    pieces = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    CLIPTokenizer(vocab={piece: number for number, piece in enumerate(pieces)}, merges=[]).save_pretrained(folder)


def processor_config(folder: Path, **changes) -> None:
    """preprocessor_config.json as OpenAI's models on the hub have it: plain sizes."""
    config = {
        "crop_size": SIDE,
        "do_center_crop": True,
        "do_normalize": True,
        "do_resize": True,
        "feature_extractor_type": "CLIPFeatureExtractor",
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
        "resample": 3,
        "size": SIDE,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(config | changes))


def save_clip(folder: Path, activation: str = "quick_gelu", scale: float = 4.6052, seed: int = 0) -> Path:
    """A CLIPModel with tokenizer and preprocessing."""
    from transformers import CLIPConfig, CLIPModel

    folder.mkdir(parents=True, exist_ok=True)
    clip_tokenizer(folder)
    processor_config(folder)
    shared = {"intermediate_size": 40, "num_hidden_layers": 2, "hidden_act": activation, "projection_dim": 19}
    config = CLIPConfig(
        projection_dim=19,
        text_config=shared
        | {
            "vocab_size": 190,
            "hidden_size": 20,
            "num_attention_heads": 2,
            "max_position_embeddings": 17,
            "bos_token_id": 188,
            "eos_token_id": 189,
            "pad_token_id": 189,
        },
        vision_config=shared | {"hidden_size": 24, "num_attention_heads": 3, "image_size": SIDE, "patch_size": 7},
    )
    model = CLIPModel(config)
    randomise(model, seed)
    with torch.no_grad():
        model.logit_scale.fill_(scale)
    model.save_pretrained(folder)
    return folder


def head_state(width: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """The published names of the affine head; the gaps in the numbers were dropout."""
    widths = [width, 1024, 128, 64, 16, 1]
    shapes: dict[str, tuple[int, ...]] = {}
    for number, (i, o) in zip((0, 2, 4, 6, 7), zip(widths, widths[1:], strict=False), strict=True):
        shapes |= {f"layers.{number}.weight": (o, i), f"layers.{number}.bias": (o,)}
    return random_weights(shapes, seed, 0.15)


def save_hps(folder: Path, name: str = "HPS_v2.1_compressed.pt") -> str:
    """A checkpoint as HPSv2's, under `state_dict`; returns the architecture's name for open_clip."""
    import open_clip

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": SIDE, "layers": 2, "width": 24, "head_width": 8, "patch_size": 7},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
    }
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    model = open_clip.CLIP(**config)
    randomise(model)
    torch.save({"epoch": 1, "state_dict": model.state_dict()}, folder / name)
    return f"local-dir:{folder}"


def bert_tokenizer(folder: Path) -> Path:
    """BERT's special tokens and a few words."""
    from transformers import BertTokenizer

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", *"abcdefghijklmnopqrstuvwxyz"[1:20]]
    vocabulary = list(dict.fromkeys(vocabulary))
    BertTokenizer(vocab={word: number for number, word in enumerate(vocabulary)}).save_pretrained(folder)
    return folder


def image_reward_state(seed: int = 0) -> dict[str, torch.Tensor]:
    """The published names and shapes, at BLIP's tiny sizes."""
    vision, text = BLIP["vision"], BLIP["text"]
    v, v_mlp, t, t_mlp = (
        vision["hidden_size"],
        vision["intermediate_size"],
        text["hidden_size"],
        text["intermediate_size"],
    )

    def linear(name, out, into):
        return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}

    def norm(name, width):
        return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

    eye, reader = "blip.visual_encoder", "blip.text_encoder"
    shapes = {
        f"{eye}.cls_token": (1, 1, v),
        f"{eye}.pos_embed": (1, (SIDE // 7) ** 2 + 1, v),
        f"{eye}.patch_embed.proj.weight": (v, 3, 7, 7),
        f"{eye}.patch_embed.proj.bias": (v,),
        **norm(f"{eye}.norm", v),
        f"{reader}.embeddings.word_embeddings.weight": (text["vocab_size"], t),
        f"{reader}.embeddings.position_embeddings.weight": (text["max_position_embeddings"], t),
        **norm(f"{reader}.embeddings.LayerNorm", t),
        **linear("blip.vision_proj", 256, v),
        **linear("blip.text_proj", 256, t),
    }
    for layer in range(vision["num_hidden_layers"]):
        block = f"{eye}.blocks.{layer}"
        shapes |= norm(f"{block}.norm1", v) | norm(f"{block}.norm2", v)
        shapes |= linear(f"{block}.attn.qkv", 3 * v, v) | linear(f"{block}.attn.proj", v, v)
        shapes |= linear(f"{block}.mlp.fc1", v_mlp, v) | linear(f"{block}.mlp.fc2", v, v_mlp)
    for layer in range(text["num_hidden_layers"]):
        block = f"{reader}.encoder.layer.{layer}"
        for kind, width in (("attention", t), ("crossattention", v)):
            shapes |= linear(f"{block}.{kind}.self.query", t, t)
            shapes |= linear(f"{block}.{kind}.self.key", t, width) | linear(f"{block}.{kind}.self.value", t, width)
            shapes |= linear(f"{block}.{kind}.output.dense", t, t) | norm(f"{block}.{kind}.output.LayerNorm", t)
        shapes |= linear(f"{block}.intermediate.dense", t_mlp, t) | linear(f"{block}.output.dense", t, t_mlp)
        shapes |= norm(f"{block}.output.LayerNorm", t)
    state = random_weights(shapes, seed) | {f"mlp.{name}": value for name, value in head_state(t, seed).items()}
    state[f"{reader}.embeddings.position_ids"] = torch.arange(text["max_position_embeddings"])[None]
    return state


def clip_score(folder: Path, **options) -> Scorer:
    return load_reward("clip_score", model=str(save_clip(folder / "clip")), **options)


def pickscore(folder: Path, **options) -> Scorer:
    place = str(save_clip(folder / "pickscore", "gelu"))
    return load_reward("pickscore", model=place, processor=place, **options)


def hpsv2(folder: Path, **options) -> Scorer:
    architecture = save_hps(folder / "hps")
    return load_reward("hpsv2", checkpoint=str(folder / "hps"), architecture=architecture, **options)


def aesthetic(folder: Path, **options) -> Scorer:
    place = save_clip(folder / "clip")
    torch.save(head_state(19), place / "sac+logos+ava1-l14-linearMSE.pth")
    return load_reward("aesthetic", checkpoint=str(place), model=str(place), **options)


def image_reward(folder: Path, **options) -> Scorer:
    torch.save(image_reward_state(), folder / "ImageReward.pt")
    tokenizer = str(bert_tokenizer(folder / "bert"))
    return load_reward("image_reward", checkpoint=str(folder), tokenizer=tokenizer, config=BLIP, **options)


TINY: dict[str, Callable[[Path], Scorer]] = {
    "clip_score": clip_score,
    "edit_direction": lambda folder: load_reward("edit_direction", model=str(save_clip(folder / "clip"))),
    "preservation": lambda folder: load_reward("preservation", model=str(save_clip(folder / "clip"))),
    "pickscore": pickscore,
    "hpsv2": hpsv2,
    "aesthetic": aesthetic,
    "image_reward": image_reward,
}
