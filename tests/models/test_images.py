import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from diffrl.models.images import (
    Cell,
    comparison_grid,
    uint8_from_signed,
    uint8_from_unit,
)
from reward_models.media import from_pil, save_media, to_pil


def noise(*shape, seed=0):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_every_level_survives_and_the_nearest_is_taken():
    levels = torch.arange(256)
    unit = (levels / 255).reshape(1, 1, 256, 1).expand(1, 3, 256, 1)
    for shift in (-0.49, 0.0, 0.49):
        assert torch.equal(uint8_from_unit(unit + shift / 255)[0, 0, :, 0], levels.to(torch.uint8))
    assert uint8_from_unit(torch.tensor([-3.0, 7.0, 1.001]).reshape(3, 1, 1)).flatten().tolist() == [0, 255, 255]


def test_the_same_bytes_as_diffusers():
    images = torch.randn(5, 3, 11, 7)
    theirs = VaeImageProcessor().postprocess(images, output_type="pil")
    for ours, image in zip(uint8_from_signed(images), theirs, strict=True):
        assert np.array_equal(np.array(to_pil(ours)), np.array(image))


def test_half_precision_is_widened_before_scaling():
    images = torch.rand(2, 3, 5, 7).bfloat16()
    assert torch.equal(uint8_from_unit(images), uint8_from_unit(images.float()))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_broken_pictures_are_named_not_coloured(value):
    images = torch.rand(5, 3, 7, 2)
    images[1, 2, 6, 1] = images[4, 0, 0, 0] = value
    with pytest.raises(ValueError, match=r"\[1, 4\] of 5"):
        uint8_from_unit(images)


def test_pil_and_back():
    picture = noise(3, 11, 7)
    image = to_pil(picture)
    assert image.size == (7, 11) and image.getpixel((6, 2)) == tuple(picture[:, 2, 6].tolist())
    assert torch.equal(from_pil(image), picture)
    assert torch.equal(from_pil(Image.new("L", (2, 3), 17)), torch.full((3, 3, 2), 17, dtype=torch.uint8))
    with pytest.raises(ValueError, match="float32"):
        to_pil(picture.float())
    with pytest.raises(ValueError, match=r"\(11, 7, 3\)"):
        to_pil(picture.permute(1, 2, 0))


def test_webp_is_lossless_and_leaves_no_temporary(tmp_path):
    for i, picture in enumerate((noise(3, 32, 32), noise(3, 13, 101), torch.zeros(3, 1, 1, dtype=torch.uint8))):
        save_media(picture, tmp_path / f"{i}.webp")
        with Image.open(tmp_path / f"{i}.webp") as image:
            assert image.format == "WEBP" and torch.equal(from_pil(image), picture)
    assert len(list(tmp_path.iterdir())) == 3


def flat(colour, side=5):
    return torch.tensor(colour, dtype=torch.uint8).reshape(3, 1, 1).expand(3, side, side)


def count(image, colour):
    return int((np.array(image) == np.array(colour)).all(axis=2).sum())


def test_a_grid_shows_every_picture_enlarged_without_new_colours():
    colours = [(1, 2, 3), (250, 3, 7), (11, 200, 13), (17, 19, 211), (99, 98, 97), (5, 90, 170)]
    cells = [Cell(f"prompt {i}", [flat(colours[2 * i]), flat(colours[2 * i + 1])]) for i in range(3)]
    grid = comparison_grid(cells, columns=2, picture_size=64)
    assert [count(grid, colour) for colour in colours] == [60 * 60] * 6  # 12 times 5 is the largest that fits 64


def test_long_captions_stay_inside_their_cell():
    captions = ["a short one", "many words " * 40, "oneword" * 40, "größe und Straße", ""]
    grids = [comparison_grid([Cell(caption, [noise(3, 32, 32), noise(3, 512, 256)])]) for caption in captions]
    assert len({grid.size for grid in grids}) == 1
    for grid in grids:
        assert (np.array(grid)[:, -20:] == np.array(grid)[0, 0]).all()


def test_a_grid_needs_a_picture_for_each_label():
    with pytest.raises(ValueError, match="one image"):
        comparison_grid([Cell("a", [noise(3, 8, 8)])])
    with pytest.raises(ValueError, match="at least one cell"):
        comparison_grid([])
