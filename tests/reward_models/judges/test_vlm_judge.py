"""What is asked of a judge, what is read in its answers, and what becomes of answers that hold no score."""

import math

import pytest
import torch

from reward_models import RewardBatch, RewardError, check_scorer, load_reward
from reward_models.judges.vlm_judge import _pattern
from reward_models.text.answers import matched_number
from tests.reward_models.judges.judge_server import Judge, pictures_of, question_of, said

PROMPTS = ["a red circle", 'two {low} "quoted" {prompt}s', "a blue square", "rain"]


def pictures(count=4, height=37, width=53):
    generator = torch.Generator().manual_seed(3)
    levels = torch.tensor([40, 120, 200, 250])[:count, None, None, None]
    return (torch.randint(0, 256, (count, 3, height, width), generator=generator) * levels // 255).to(torch.uint8)


def load(judge, **options):
    return load_reward("vlm_judge", **{"url": judge.url, "model": "judge", "backoff": 0.01, "retries": 1, **options})


def saying(*texts):
    """A judge that says the text that the question's last word numbers."""
    return lambda handler, number, body: said(texts[int(question_of(body).split()[-1])])


def scores(judge, texts, **options):
    media = pictures(1).expand(len(texts), -1, -1, -1)
    judge.handle_chat = saying(*texts)
    return load(judge, **options)(RewardBatch(media, [str(row) for row in range(len(texts))]))


def test_json_scores_are_the_judges_own(start):
    media = pictures()
    output = load(start(), concurrency=2)(RewardBatch(media, PROMPTS))
    red = media[:, 0].double().mean(dim=(1, 2)) / 255
    assert output.raw.tolist() == pytest.approx((10 * red).tolist(), abs=1e-5)
    assert output.ok.all() and output.errors == [None] * 4


def test_yes_probability_is_that_of_the_first_token(start):
    media, judge = pictures(), start()
    scorer = load(judge, answer="yes_probability")
    output = scorer(RewardBatch(media, PROMPTS))
    red = media[:, 0].double().mean(dim=(1, 2)) / 255
    yes, no = 0.95 * red, 0.9 * (1 - red)  # as the judge spreads them over three spellings; "Maybe" does not count
    assert output.raw.tolist() == pytest.approx((yes / (yes + no)).tolist(), abs=1e-5)
    assert (judge.asked[0]["logprobs"], judge.asked[0]["top_logprobs"], judge.asked[0]["max_tokens"]) == (True, 20, 1)
    assert scorer.spec.range == (0, 1)


def test_the_question_holds_prompt_and_range(start):
    judge = start()
    template = '{media}: {prompt}. {"score": {low} to {high}} {else}'
    load(judge, template=template, range=(1, 7), concurrency=1)(RewardBatch(pictures(2), PROMPTS[:2]))
    assert [question_of(body) for body in judge.asked] == [
        'an image: a red circle. {"score": 1 to 7} {else}',
        'an image: two {low} "quoted" {prompt}s. {"score": 1 to 7} {else}',
    ]
    assert all(len(pictures_of(body)) == 1 for body in judge.asked)


def test_clips_are_shown_as_frames_in_order(start):
    judge = start()
    clip = torch.arange(12, dtype=torch.uint8).view(1, 12, 1, 1, 1).expand(1, 12, 3, 8, 8) * 20
    output = load(judge, frames=5)(RewardBatch(clip, ["a"], fps=8.0))
    assert [int(picture.mean()) // 20 for picture in pictures_of(judge.asked[0])] == [0, 2, 4, 7, 9]
    assert "frames of a video" in question_of(judge.asked[0])
    assert float(output.raw) == pytest.approx(10 * 20 * (0 + 2 + 4 + 7 + 9) / 5 / 255, abs=1e-5)
    load(judge)(RewardBatch(clip[:, :3], ["a"]))
    assert len(pictures_of(judge.asked[1])) == 3


def test_an_edit_is_shown_after_its_source(start):
    judge, media, sources = start(), pictures(2), [pictures(3)[2], pictures(4, 8, 9)[3]]
    scorer = load(judge, source=True, concurrency=1)
    scorer(RewardBatch(media, PROMPTS[:2], sources=sources))
    for body, source, edited, prompt in zip(judge.asked, sources, media, PROMPTS, strict=False):
        shown = pictures_of(body)
        assert [image.tolist() for image in shown] == [one.permute(1, 2, 0).tolist() for one in (source, edited)]
        assert question_of(body).endswith(f"Instruction: {prompt}") and "after it an image" in question_of(body)
    assert not check_scorer(scorer)
    with pytest.raises(RewardError, match="edit"):
        scorer(RewardBatch(media, PROMPTS[:2]))


def test_an_empty_clip_fails_and_is_not_asked(start):
    judge = start()
    output = load(judge)(RewardBatch(torch.zeros(2, 0, 3, 8, 8, dtype=torch.uint8), ["a", "b"]))
    assert not output.ok.any() and "nothing to see" in output.errors[0] and not judge.asked


def test_a_judge_on_another_scale_fails(start):
    texts = ["Score: 4/10", "Score: 4 out of 5", "Score: 4,5", "Score: 1e0"]
    output = scores(start(), texts, answer="regex", range=(1, 5))
    assert output.ok.tolist() == [False, True, False, False] and output.raw[1] == 4
    assert "highest score is 5" in output.errors[0] and "no plain number: '4,5'" in output.errors[2]
    output = scores(
        start(), ['{"score": "4/10"}', '{"score": "4,5"}', '{"score": "1e0"}', '{"score": 4}'], range=(1, 5)
    )
    assert output.ok.tolist() == [False, False, False, True]


def test_own_patterns(start):
    output = scores(start(), ["<s>3</s> <s>4</s>", "<s>good</s>", "3"], answer="regex", pattern="<s>(.*?)</s>")
    assert output.raw[0] == 4 and output.ok.tolist() == [True, False, False]
    assert "is 'good', which is no number" in output.errors[1] and "does not match" in output.errors[2]
    assert matched_number("a 3 b 4", _pattern(r"(\d)")) == 4


def test_answers_outside_the_range_fail(start):
    output = scores(start(), ['{"score": 11}', '{"score": -1}', '{"score": 10}'])
    assert output.ok.tolist() == [False, False, True]
    assert output.errors[0] == "the answer is 11, outside [0, 10]" and math.isnan(output.raw[0])


def test_a_server_without_log_probabilities_is_told(start):
    output = scores(start(), ["Yes"], answer="yes_probability", template="{prompt}")
    assert "must support logprobs" in output.errors[0] and math.isnan(output.raw[0])


def test_answers_cut_off_fail(start):
    judge = start(lambda handler, number, body: said('{"score": 3}', finish_reason="length"))
    output = load(judge)(RewardBatch(pictures(1), ["a"]))
    assert "raise max_tokens" in output.errors[0]


def test_a_server_that_dies_is_all_failures_and_no_exception():
    judge = Judge()
    scorer = load(judge, retries=0, check=False)  # which would leave a connection open
    judge.shutdown()
    judge.server_close()
    output = scorer(RewardBatch(pictures(), PROMPTS))
    assert not output.ok.any() and output.raw.isnan().all() and all("127.0.0.1" in error for error in output.errors)


def test_the_spec_says_the_range(start):
    scorer = load(start(), range=[1, 5], template="Is it pretty? {low}-{high}")
    assert (scorer.spec.range, scorer.spec.scaling, scorer.spec.uses_prompt) == ((1, 5), (1, 4), False)
    assert type(scorer).spec.range == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"answer": "xml"}, "json, regex, yes_probability"),
        ({"range": [5, 1]}, "lowest, highest"),
        ({"range": [0, "9"]}, "lowest, highest"),
        ({"source": "yes"}, "true or false"),
        ({"pattern": r"\d+"}, "one group"),
        ({"words": ["Yes"]}, "two words"),
    ],
)
def test_wrong_options_are_told(options, sentence):
    with pytest.raises(RewardError, match=sentence):
        load_reward("vlm_judge", **{"url": "http://127.0.0.1:1", "model": "judge", "check": False, **options})
