import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CLIPImageProcessor, CLIPModel

from reward_models import RewardBatch, RewardError, load_reward
from reward_models.images import diversity
from reward_models.self_test import self_test
from tests.reward_models.tiny_clip import save_clip


def random_media(*shape, seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def score(media, groups=(), prompts=None, **options):
    return load_reward("diversity", **options)(RewardBatch(media, prompts or ["a"] * len(media), groups=groups))


def reduced(picture):
    """Means over the windows floor(i H / 32) .. ceil((i + 1) H / 32), one by one."""
    values = picture.numpy().astype(np.float64) / 255
    height, width = values.shape[1:]
    made = np.empty((3, 32, 32))
    for i in range(32):
        for j in range(32):
            rows = slice(i * height // 32, -(-(i + 1) * height // 32))
            columns = slice(j * width // 32, -(-(j + 1) * width // 32))
            made[:, i, j] = values[:, rows, columns].mean((1, 2))
    return made


def mean_distances(features, rows):
    """Of each row, the mean RMS difference to the other rows."""
    return [np.mean([np.sqrt(np.mean((features[a] - features[b]) ** 2)) for b in rows if b != a]) for a in rows]


def test_pixels_against_loops_in_two_groups():
    media = random_media(5, 3, 37, 53)
    media[:, :, :20] //= 3
    features = [reduced(picture) for picture in media]
    raw = score(media, groups=[7, 9, 7, 9, 7]).raw
    assert raw[[0, 2, 4]].tolist() == pytest.approx(mean_distances(features, [0, 2, 4]), rel=1e-5)
    assert raw[[1, 3]].tolist() == pytest.approx(mean_distances(features, [1, 3]), rel=1e-5)


def test_equal_prompts_are_a_group_and_a_lonely_sample_is_not_scored():
    media = random_media(3, 3, 32, 32)
    output = score(media, prompts=["a", "b", "a"])
    assert output.ok.tolist() == [True, False, True] and torch.isnan(output.raw[1])
    assert "no other sample" in output.errors[1] and output.errors[0] is None
    assert torch.allclose(output.raw[[0, 2]], score(media[[0, 2]]).raw)


class Largest(TorchDispatchMode):
    """The most bytes that any operation gave back."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.bytes = max(self.bytes, result.numel() * result.element_size())
        return result


def test_clips_are_never_floats_as_a_whole():
    media = random_media(4, 17, 3, 127, 211)  # 5.5 MB, as floats 22 MB
    with Largest() as largest:
        assert score(media).ok.all()
    assert largest.bytes <= media.numel()  # the group's own bytes, picked out of the batch


def test_features_in_pieces_are_those_of_all_at_once(monkeypatch):
    frames = random_media(7, 3, 37, 53)
    at_once = torch.nn.functional.adaptive_avg_pool2d(frames.float() / 255, 32).flatten(1)
    for values in (1, 2 * 3 * 37 * 53, 2**20):  # images at a time: 1, 2, all
        monkeypatch.setattr(diversity, "PIECE", values)
        assert torch.equal(diversity.pixel_features(frames), at_once)


def test_videos_are_compared_frame_by_frame():
    media = random_media(3, 4, 3, 37, 53)
    features = [np.stack([reduced(frame) for frame in frames]) for frames in media]
    assert score(media).raw.tolist() == pytest.approx(mean_distances(features, [0, 1, 2]), rel=1e-5)
    assert not score(media[:, :0]).ok.any()


def test_clip_features(tmp_path):
    folder = str(save_clip(tmp_path))
    media = random_media(4, 3, 37, 53)
    media[1] //= 2
    model, processor = CLIPModel.from_pretrained(folder).eval(), CLIPImageProcessor.from_pretrained(folder)
    pixels = processor(images=[p.permute(1, 2, 0).numpy() for p in media], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        embeddings = model.visual_projection(model.vision_model(pixels).pooler_output).double()
    expected = []
    for a in range(4):
        cosines = [torch.cosine_similarity(embeddings[a], embeddings[b], dim=0).item() for b in range(4) if b != a]
        expected.append(1 - sum(cosines) / 3)
    options = {"features": "clip", "model": folder}
    # transformers resizes as tensors, one grey level from PIL on noise
    assert score(media, **options).raw.tolist() == pytest.approx(expected, rel=0.02)
    assert score(media[[0, 0]], **options).raw.tolist() == pytest.approx([0, 0], abs=1e-6)
    assert score(media, **options, dtype="bfloat16").raw.tolist() == pytest.approx(expected, rel=0.1)


def test_clip_features_of_videos(tmp_path):
    options = {"features": "clip", "model": str(save_clip(tmp_path))}
    media = random_media(2, 3, 3, 37, 53)
    alone = [score(media[:, frame], **options).raw for frame in range(3)]
    assert torch.allclose(score(media, **options).raw, torch.stack(alone).mean(0), atol=1e-6)
    assert self_test(load_reward("diversity", **options)).passed
    assert load_reward("diversity", **options).spec.range == (0.0, 2.0)


def test_refusals(tmp_path):
    with pytest.raises(RewardError, match="must be 'pixels' or 'clip'"):
        load_reward("diversity", features="dino")
    with pytest.raises(RewardError, match="Only features='clip'"):
        load_reward("diversity", model="somewhere")
    with pytest.raises(RewardError, match="There is no directory"):
        load_reward("diversity", features="clip", model=str(tmp_path / "none"))
