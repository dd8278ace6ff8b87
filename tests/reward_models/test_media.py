"""Files, PIL images and arrays to tensors and back; images of any sizes scored in order."""

import pytest
import torch

from reward_models import RewardBatch, RewardError, ScorerSpec, score_media
from reward_models.base import output_of_rows
from reward_models.media import as_media, batches_of, open_media, save_media


def noise(*shape, seed=0):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["gone.png", "gone.mp4"])
def test_a_file_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(RewardError, match=rf"There is no file .*{name}"):
        open_media(tmp_path / name)


@pytest.mark.parametrize("item", [torch.rand(3, 4, 4), torch.zeros(4, 4, 3, dtype=torch.uint8)])
def test_what_is_neither_is_refused(item):
    with pytest.raises(RewardError, match="An image is a path, a PIL image"):
        as_media(item)


class Sizes:
    """Scores an image by its height; remembers how many came at once."""

    spec = ScorerSpec("sizes", "Height.", (0.0, 1e4), media=("image", "video"))

    def __init__(self):
        self.batches = []

    def __call__(self, batch: RewardBatch):
        self.batches.append((len(batch), batch.fps))
        rows = [(float(batch.media.shape[-2]), {"row": float(prompt)}, None) for prompt in batch.prompts]
        return output_of_rows(rows, ["row"])


def test_sizes_share_batches_and_order_stays():
    heights = [11, 13, 11, 11, 13, 17, 11]
    items = [noise(3, height, 19, seed=i) for i, height in enumerate(heights)]
    scorer = Sizes()
    output = score_media(scorer, items, [str(i) for i in range(7)], batch_size=3)
    assert output.raw.tolist() == heights and output.parts["row"].tolist() == list(range(7))
    assert sorted(count for count, _ in scorer.batches) == [1, 1, 2, 3]
    clips = [noise(2, 3, 8, 8), noise(2, 3, 8, 8)]
    score_media(scorer, clips, ["0", "1"], fps=6.0)
    assert scorer.batches[-1] == (2, 6.0)


def test_groups_stay_whole_in_batches():
    assert batches_of(range(7), 3, "aababcc") == [[0, 1, 3], [2, 4], [5, 6]]
    assert batches_of(range(5), 2, "aaaab") == [[0, 1, 2, 3], [4]]
    assert batches_of(range(5), 2) == [[0, 1], [2, 3], [4]]


def test_lengths_that_differ_are_refused():
    with pytest.raises(RewardError, match="prompts must have one entry an image. Got 1 for 2 images"):
        score_media(Sizes(), [noise(3, 4, 4)] * 2, ["0"])
    with pytest.raises(RewardError, match="metadata must have one entry a sample. Got 1 for 2"):
        RewardBatch(noise(2, 3, 4, 4), ["a", "b"], [{}])


def test_what_webp_cannot_hold_is_refused_in_a_sentence(tmp_path):
    media = torch.zeros((2, 3, 16_384, 1), dtype=torch.uint8)
    with pytest.raises(RewardError, match=r"at most 16,383 pixels a side"):
        save_media(media, tmp_path / "x.webp", fps=8.0)
    assert not list(tmp_path.iterdir())
