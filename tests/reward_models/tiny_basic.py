"""Scorers without weights, OCR with the weights of its wheel, and a tiny random Mask2Former for GenEval."""

from collections.abc import Callable
from pathlib import Path

import torch

from reward_models import Scorer, load_reward
from tests.reward_models.tiny_clip import save_clip

CLASSES = ("clock", "stop sign", "aeroplane", "tvmonitor", "person")


def save_mask2former(folder: Path, seed: int = 0) -> Path:
    """A Mask2Former with few queries that is sure of what it sees, though it sees at random."""
    from transformers import (
        Mask2FormerConfig,
        Mask2FormerForUniversalSegmentation,
        Mask2FormerImageProcessor,
        SwinConfig,
    )

    backbone = SwinConfig(
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        image_size=64,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = Mask2FormerConfig(
        backbone_config=backbone,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        dim_feedforward=16,
        num_queries=11,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: index for index, name in enumerate(CLASSES)},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Mask2FormerForUniversalSegmentation(config).eval()
        for embeddings in (
            model.model.transformer_module.queries_features,
            model.model.transformer_module.queries_embedder,
        ):
            torch.nn.init.normal_(embeddings.weight, std=3.0)  # queries that differ
        torch.nn.init.normal_(model.class_predictor.weight, std=1.0)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    Mask2FormerImageProcessor(size={"height": 48, "width": 48}).save_pretrained(folder)
    return folder


def load_geneval(name: str, folder: Path, **options) -> Scorer:
    """A GenEval scorer on tiny random models."""
    model, clip_model = save_mask2former(folder / "detector"), save_clip(folder / "clip")
    return load_reward(name, model=str(model), clip_model=str(clip_model), side=64, **options)


TINY: dict[str, Callable[[Path], Scorer]] = {
    "ocr": lambda folder: load_reward("ocr", threads=1),
    "ocr_exact": lambda folder: load_reward("ocr_exact", threads=1, detect=False),
    "open_nsfw": lambda folder: load_reward("open_nsfw", threads=1),
    "video_mean": lambda folder: load_reward("video_mean", reward="shapes", frames=3),
    "geneval": lambda folder: load_geneval("geneval", folder),
    "geneval_strict": lambda folder: load_geneval("geneval_strict", folder),
}
