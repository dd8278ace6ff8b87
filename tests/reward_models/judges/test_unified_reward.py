"""UnifiedReward's questions word for word, its axes and its answers, from a judge on this machine."""

import hashlib
import math

import numpy as np
import pytest
import torch
from PIL import Image

from reward_models import RewardBatch, RewardError, load_reward
from reward_models.judges.unified_reward import IMAGE_1_5, IMAGE_2, VIDEO_2
from tests.reward_models.judges.judge_server import judges, pictures_of, question_of, said

PROMPTS = ["a red circle", "two {braces}"]


def pictures(count=2, height=61, width=47):
    return torch.randint(
        0, 256, (count, 3, height, width), generator=torch.Generator().manual_seed(9), dtype=torch.uint8
    )


@pytest.fixture
def judge():
    with judges() as start:
        yield start()


def load(judge, **options):
    return load_reward("unified_reward", **{"url": judge.url, "retries": 1, "backoff": 0.01, **options})


def says(judge, text, reason="stop"):
    judge.handle_chat = lambda handler, number, body: said(text, finish_reason=reason)


def channels(media):
    dims = [axis for axis in range(1, media.ndim) if axis != media.ndim - 3]
    return 1 + 4 * media.double().mean(dim=dims) / 255


def test_axes_of_images(judge):
    media = pictures()
    output = load(judge)(RewardBatch(media, PROMPTS))
    expected = channels(media)
    for column, part in enumerate(("alignment", "coherence", "style")):
        assert output.parts[part].tolist() == pytest.approx(expected[:, column].tolist(), abs=1e-5)
    assert output.raw.tolist() == pytest.approx(expected.mean(dim=1).tolist(), abs=1e-5)
    assert {tuple(picture.shape) for body in judge.asked for picture in pictures_of(body)} == {(61, 47, 3)}
    asked = {question_of(body) for body in judge.asked}
    assert asked == {IMAGE_2.replace("{prompt}", prompt) for prompt in PROMPTS}
    body = judge.asked[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("UnifiedReward", 0, 4096)


def test_axes_of_clips(judge):
    clips = torch.randint(0, 256, (2, 37, 3, 16, 16), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    output = load(judge)(RewardBatch(clips, PROMPTS, fps=8.0))
    seen = clips[:, [int(i * 37 / 16) for i in range(16)]]
    expected = channels(seen)
    assert sorted(output.parts) == ["alignment", "physics", "style"]
    assert output.parts["physics"].tolist() == pytest.approx(expected[:, 1].tolist(), abs=1e-5)
    assert output.raw.tolist() == pytest.approx(expected.mean(dim=1).tolist(), abs=1e-5)
    assert [len(pictures_of(body)) for body in judge.asked] == [16, 16]
    assert VIDEO_2.replace("{prompt}", PROMPTS[0]) in {question_of(body) for body in judge.asked}


def test_version_1_5_squeezes_pictures_and_reads_the_final_score(judge):
    media = pictures(1)
    scorer = load(judge, version="1.5")
    output = scorer(RewardBatch(media, PROMPTS[:1]))
    (seen,) = pictures_of(judge.asked[0])
    expected = np.array(Image.fromarray(media[0].permute(1, 2, 0).numpy()).resize((512, 512)))  # bicubic, as Flow-GRPO
    assert np.array_equal(seen, expected)
    assert float(output.raw) == pytest.approx(1 + 4 * expected[..., 0].mean() / 255, abs=1e-5)
    assert question_of(judge.asked[0]) == IMAGE_1_5.replace("{prompt}", "a red circle")
    assert (scorer.spec.scaling, scorer.spec.media, dict(output.parts)) == ((0, 5), ("image",), {})
    with pytest.raises(RewardError, match="scores images"):
        scorer(RewardBatch(media[:, None], PROMPTS[:1]))


@pytest.mark.parametrize(
    ("question", "digest"),
    [  # taken of the strings in the published scripts, with {prompt} for the caption
        (IMAGE_2, "75d52d3ae771f89b682db3b74cdaca1c7bde373a39162bc1c9dabd63cdc9b851"),
        (VIDEO_2, "707411fb9175547e74f145ae3efa459d621f11afcca076659a5588848e91e1c7"),
        (IMAGE_1_5, "d68ab1dcf4dc3a39ec5dfab963d17fe30a6e5f713eb49f743ed88a4c8ce4317f"),
    ],
)
def test_questions_are_the_published_ones(question, digest):
    assert hashlib.sha256(question.encode()).hexdigest() == digest


@pytest.mark.parametrize(
    "text",
    ["Final Score: X", "Final Score: 6", "Final Score: 4"],
)
def test_answers_without_a_final_score_fail(judge, text):
    says(judge, text, "length" if text.endswith("4") else "stop")  # cut off, it may be no last word
    output = load(judge, version="1.5")(RewardBatch(pictures(1), ["a"]))
    assert not output.ok[0] and math.isnan(output.raw[0]) and output.errors[0]


def test_the_published_example(judge):
    says(
        judge,
        "Alignment Score (1-5): 2.694700002670288\nCoherence Score (1-5): 2.371500015258789\n"
        "Style Score (1-5): 2.802500009536743",
    )
    assert float(load(judge)(RewardBatch(pictures(1), ["a"])).raw) == pytest.approx(2.6229, abs=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "Alignment Score (1-5): 3\nCoherence Score (1-5): 3",
        "Alignment Score (1-5): 3\nCoherence Score (1-5): 3\nStyle Score (1-5): 7",
        "Alignment Score (1-5): 3\nPhysics Score (1-5): 3\nStyle Score (1-5): 3",
    ],
)
def test_an_axis_that_is_missing_or_outside_fails(judge, text):
    says(judge, text)
    output = load(judge)(RewardBatch(pictures(1), ["a"]))
    assert not output.ok[0] and math.isnan(output.raw[0]) and output.parts["alignment"].isnan().all()


def test_options(judge):
    for options, sentence in (({"version": "3"}, "1.5 or 2.0"), ({"frames": 0}, "frames"), ({"side": 0}, "pixels")):
        with pytest.raises(RewardError, match=sentence):
            load(judge, **options)
    load(judge, version=1.5, side=64)(RewardBatch(pictures(1), ["a"]))  # a YAML file says 1.5 as a number
    assert pictures_of(judge.asked[0])[0].shape == (64, 64, 3)
