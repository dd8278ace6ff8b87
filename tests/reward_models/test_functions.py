"""Functions as rewards: what each form is given, against the batch itself, and what it may return."""

import math

import numpy as np
import pytest
import torch

from reward_models import RewardBatch, RewardError, check_scorer, load_reward

MODULE = """
import numpy as np
import torch

SEEN = []


def flow(images, prompts, metadata, only_strict=True):
    SEEN.append((images, prompts, metadata, only_strict))
    return images.mean(dim=(1, 2, 3)), {"beside": 1}


def ddpo(images, prompts, metadata=None, gain=1.0, **kwargs):
    '''Mean of the red channel.

    More about it.
    '''
    return np.array([gain * float(image[0].mean()) for image in images], dtype=np.float32)


def trl(prompts, completions, colour=None, **columns):
    SEEN.append((prompts, completions, colour, columns))
    return [None if prompt == "b" else float(np.asarray(image).mean()) / 255
            for prompt, image in zip(prompts, completions)]


def strict_trl(prompts, completions, colour):
    return [float(len(one)) for one in colour]


def clips(videos, prompts):
    return videos.mean(dim=(1, 2, 3, 4)).tolist()


def maker(size=3):
    return lambda images, prompts: [float(size)] * len(images)


def short(images, prompts):
    return [0.5]


def words(images, prompts):
    return ["good"] * len(images)


def raising(images, prompts):
    raise ValueError("boom")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "function_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "function_rewards", raising=False)
    return "function_rewards"


def batch(count=3, frames=()):
    media = torch.randint(0, 256, (count, *frames, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    return RewardBatch(media.to(torch.uint8), ["a", "b", "c"][:count], [{"colour": "red"}, {}, {"size": 2}][:count])


def test_the_form_of_flow_grpo(own):
    given = batch()
    output = load_reward(f"{own}:flow", only_strict=False)(given)
    images, prompts, metadata, strict = __import__(own).SEEN[-1]
    assert torch.equal(images, given.media.float() / 255) and prompts == list(given.prompts)
    assert metadata == [{"colour": "red"}, {}, {"size": 2}] and strict is False
    assert output.raw.numpy() == pytest.approx(given.media.numpy().mean(axis=(1, 2, 3)) / 255, rel=1e-5)


def test_arrays_options_and_what_it_says_of_itself(own):
    given, scorer = batch(), load_reward(f"{own}:ddpo", gain=2.0)
    red = given.media.numpy()[:, 0].mean(axis=(1, 2)) / 255
    assert scorer(given).raw.numpy() == pytest.approx(2 * red, rel=1e-5)
    assert scorer.spec.name == "ddpo" and scorer.spec.description.startswith("Mean of the red channel. (A function")
    assert math.isinf(scorer.spec.range[1]) and check_scorer(scorer) == []
    with pytest.raises(RewardError, match="strictly|only_strikt.*It takes: only_strict"):
        load_reward(f"{own}:flow", only_strikt=False)


def test_the_form_of_trl(own):
    given = batch()
    output = load_reward(f"{own}:trl")(given)
    prompts, completions, colour, columns = __import__(own).SEEN[-1]
    assert prompts == ["a", "b", "c"] and colour == ["red", None, None] and columns == {"size": [None, None, 2]}
    assert all(np.array_equal(np.asarray(i), m.permute(1, 2, 0)) for i, m in zip(completions, given.media, strict=True))
    assert output.ok.tolist() == [True, False, True] and math.isnan(output.raw[1])
    named = RewardBatch(given.media, given.prompts, [{"colour": "red"}, {"colour": "blue"}, {"colour": "x"}])
    assert load_reward(f"{own}:strict_trl")(named).raw.tolist() == [3.0, 4.0, 1.0]


def test_videos_and_functions_that_are_made(own):
    clips = batch(2, (4,))
    assert load_reward(f"{own}:clips")(clips).raw.numpy() == pytest.approx(
        clips.media.numpy().mean(axis=(1, 2, 3, 4)) / 255, rel=1e-5
    )
    assert load_reward(f"{own}:maker", size=5)(batch()).raw.tolist() == [5.0] * 3


@pytest.mark.parametrize(("name", "told"), [("short", "3 samples. short returned"), ("words", "words returned")])
def test_what_is_no_number_a_sample_is_refused(own, name, told):
    with pytest.raises(RewardError, match=told):
        load_reward(f"{own}:{name}")(batch())
