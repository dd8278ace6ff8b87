"""Against SciPy and loops over pixels in double precision."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from reward_models import RewardBatch, load_reward
from reward_models.images import picture_statistics
from reward_models.images.picture_statistics import colourfulness, in_pieces, laplacian_variance, rmscontrast


def random_pictures(count=3, height=37, width=53, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, height, width), generator=generator, dtype=torch.uint8)


def score(name, media):
    return load_reward(name)(RewardBatch(media, ["a"] * len(media))).raw


def luma(picture):
    red, green, blue = picture.numpy().astype(np.float64)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_sharpness_is_scipys_laplacian_inside():
    media = random_pictures()
    expected = [ndimage.laplace(luma(picture))[1:-1, 1:-1].var() for picture in media]
    assert score("sharpness", media).tolist() == pytest.approx(expected, rel=1e-5)


def test_a_picture_without_inner_pixels_is_not_scored():
    output = load_reward("sharpness")(RewardBatch(random_pictures(2, 2, 9), ["a", "b"]))
    assert output.ok.tolist() == [False, False] and torch.isnan(output.raw).all()
    assert "9 x 2 pixels" in output.errors[0]


def test_contrast():
    media = random_pictures()
    assert score("contrast", media).tolist() == pytest.approx([(luma(p) / 255).std() for p in media], rel=1e-5)
    half = torch.zeros(1, 3, 6, 10, dtype=torch.uint8)
    half[..., 5:] = 255
    assert score("contrast", half).item() == pytest.approx(0.5)
    assert score("contrast", half[..., :5]).item() == 0


def test_colourfulness_against_a_loop_over_pixels():
    picture = random_pictures(1, 7, 5)[0]
    pairs = [(r - g, (r + g) / 2 - b) for r, g, b in picture.flatten(1).T.double().tolist()]
    means = [sum(pair[k] for pair in pairs) / len(pairs) for k in (0, 1)]
    variances = [sum((pair[k] - means[k]) ** 2 for pair in pairs) / len(pairs) for k in (0, 1)]
    expected = math.sqrt(sum(variances)) + 0.3 * math.hypot(*means)
    assert score("colourfulness", picture[None]).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("measure", [laplacian_variance, rmscontrast, colourfulness])
def test_a_batch_is_measured_in_pieces_and_each_image_as_if_alone(measure):
    images = random_pictures(7)
    most = []

    def watched(part):
        most.append(part.numel())
        return measure(part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture_statistics, "PIECE", 2 * images[0].numel())
        found = in_pieces(watched, images)
    assert max(most) <= 2 * images[0].numel() and len(most) == 4
    assert torch.equal(found, torch.cat([measure(image[None]) for image in images]))
