"""The embedded worlds as prompt sources: what every one of them has, and the noise that belongs to a split."""

from importlib.util import find_spec
from itertools import combinations

import numpy as np
import pytest

from diffrl.data import moving, shapes, words
from diffrl.data.prompts import load_prompts
from diffrl.data.worlds import SOURCES, SPLITS, WORLDS, noise_stream
from diffrl.errors import DiffrlError
from reward_models.images import shapes as images_shapes
from reward_models.videos import moving_shapes

MODULES = {"shapes": shapes, "moving": moving, "words": words}
GRAMMARS = {"shapes": images_shapes, "moving": moving_shapes, "words": words}
HERE = [world for world in WORLDS if find_spec(WORLDS[world])]


@pytest.mark.parametrize("world", HERE)
def test_a_world_has_three_splits_with_no_prompt_in_common(world):
    texts = {split: [prompt.text for prompt in load_prompts(f"{world}:{split}")] for split in SPLITS}
    assert all(found and len(set(found)) == len(found) for found in texts.values())
    assert not any(set(texts[a]) & set(texts[b]) for a, b in combinations(SPLITS, 2))
    assert {f"{world}:{split}" for split in SPLITS} <= set(SOURCES)


def test_the_noise_of_evaluations_is_that_of_tune_and_report_has_its_own():
    assert noise_stream("shapes:tune") == noise_stream("words:tune") == noise_stream("my_prompts.txt") == "eval"
    assert len({noise_stream(f"moving:{split}") for split in SPLITS}) == 3
    assert [noise_stream(f"my_prompts.txt@{split}") for split in SPLITS] == ["eval train", "eval", "eval report"]


@pytest.mark.parametrize("world", MODULES)
def test_a_prompt_is_its_scene_and_a_scene_is_rendered_from_its_seed(world):
    module, grammar = MODULES[world], GRAMMARS[world]
    texts = [prompt.text for split in SPLITS for prompt in load_prompts(f"{world}:{split}")]
    assert all(grammar.format_prompt(grammar.parse_prompt(text)) == text for text in texts[::7])
    scene = grammar.parse_prompt(texts[0])
    first, again = (module.render(scene, np.random.default_rng(5)) for _ in range(2))
    others = [module.render(scene, np.random.default_rng(seed)) for seed in range(20)]
    assert first.dtype == np.uint8 and np.array_equal(first, again)
    assert any(not np.array_equal(first, other) for other in others)
    with pytest.raises(DiffrlError, match="splits train, tune and report"):
        module.prompts("test")


@pytest.mark.parametrize(("world", "frames"), [("shapes", ()), ("moving", (5,))])
def test_any_size_is_rendered_and_words_are_read_however_they_are_spaced(world, frames):
    module, grammar = MODULES[world], GRAMMARS[world]
    more = {"frames": frames[0]} if frames else {}
    text = load_prompts(f"{world}:tune")[0].text
    scene = grammar.parse_prompt(text)
    assert module.render(scene, np.random.default_rng(5), size=47, **more).shape == (*frames, 47, 47, 3)
    assert grammar.parse_prompt(f"  {text.upper().replace(' ', '  ')}. ") == scene
    held_out = {
        word for split in ("tune", "report") for p in load_prompts(f"{world}:{split}") for word in p.text.split()
    }
    assert held_out <= {word for p in load_prompts(f"{world}:train") for word in p.text.split()}
