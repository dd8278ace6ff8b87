"""Files without padded numbers stand in the order of their numbers, and each has the line of a list that is its own."""

import random

import pytest

from reward_models.common.errors import RewardError
from reward_models.media import to_pil
from reward_models.scoring.order import natural_key
from reward_models.scoring.sources import Selection, collect
from reward_models.self_test import noise


@pytest.fixture
def numbered(tmp_path):
    """Twelve images 1.png ... 12.png, and as many lines that say their number."""
    for number in range(1, 13):
        to_pil(noise(4)).save(tmp_path / f"{number}.png")
    (tmp_path / "prompts.txt").write_text("\n".join(f"number {n}" for n in range(1, 13)))
    return tmp_path


def test_each_image_of_a_folder_or_pattern_has_the_line_of_its_number(numbered):
    for where in (numbered, numbered / "*.png"):
        items = collect(Selection([str(where)], prompts=numbered / "prompts.txt")).items
        assert [(item.path.stem, item.prompt) for item in items] == [(str(n), f"number {n}") for n in range(1, 13)]


def test_images_as_a_shell_lists_them_are_not_paired_by_line(numbered):
    listed = sorted(str(path) for path in numbered.glob("*.png"))
    with pytest.raises(RewardError, match=r"1\d.png before .*2.png. Give their folder"):
        collect(Selection(listed, prompts=numbered / "prompts.txt"))
    backwards = [str(numbered / f"{n}.png") for n in range(12, 0, -1)]  # nobody's order but the user's own
    items = collect(Selection(backwards, prompts=numbered / "prompts.txt")).items
    assert [(item.path.stem, item.prompt) for item in items][:2] == [("12", "number 1"), ("11", "number 2")]


def test_the_order_is_total_and_that_of_numbers_at_any_place_of_a_name():
    names = [
        f"{a}{x}{b}{y}" for a in ("", "a", "b-") for x in (0, 2, 10) for b in ("_", ".") for y in ("01", "1", "9", "10")
    ]
    shuffled = names[:]
    random.Random(0).shuffle(shuffled)
    assert sorted(shuffled, key=natural_key) == sorted(names, key=natural_key)
    assert sorted(["x10", "x9", "x"], key=natural_key) == ["x", "x9", "x10"]
    assert sorted(["a/10", "a/9", "a10/1", "a9/1"], key=natural_key) == ["a/9", "a/10", "a9/1", "a10/1"]
