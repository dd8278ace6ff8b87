"""What is said of prompts before a run: counts against counts by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from diffrl.config.schema import PromptSettings
from diffrl.errors import ConfigError
from diffrl.models.text_encoders import TextReader
from diffrl.records import Prompt
from diffrl.training.prompt_report import add_encoders, report_prompts
from reward_models.base import ScorerSpec
from reward_models.common.errors import RewardError

SPEC = ScorerSpec(name="mine", description="Mine.", range=(0.0, 1.0))


def settings(**keys):
    return PromptSettings(train="a.txt", eval="b.txt", per_iteration=2, **keys)


def prompts(*texts):
    return [Prompt(text) for text in texts]


def scorer(**attributes):
    return SimpleNamespace(name="mine", scorer=SimpleNamespace(spec=SPEC, **attributes))


def letters(limit):
    return {"text_limit": limit, "text_length": len}


def asks(prompt, metadata):
    if "text" not in metadata:
        raise RewardError("no text")
    return metadata["text"]


@pytest.mark.parametrize(
    ("evaluated", "shared"),
    [
        (["A CAT.", "a  dog", "a bird"], 2),
        (["a cats", "a do", "a bird"], 0),
        (["\uff21 cat\u2026", "a\u00a0dog !"], 2),
    ],
)
def test_what_is_trained_on_and_evaluated_is_counted_and_all_of_it_refused(evaluated, shared):
    lists = {"prompts.train": prompts("a cat", "A dog.", "a fish"), "prompts.eval": prompts(*evaluated)}
    report = report_prompts(settings(), lists, {})
    if shared == len(evaluated):
        with pytest.raises(ConfigError, match=f"nothing is held out. {shared} of the {shared} prompts"):
            report.require()
        report = report_prompts(settings(eval_on_train=True), lists, {})
    report.require()
    assert any(f"{shared} of the {len(evaluated)} prompts" in note for note in report.notes) == (shared > 0)


def test_the_same_words_about_another_image_are_another_prompt_and_every_caption_counts():
    lists = {
        "prompts.train": [Prompt("make it red", {}, "/a.png")],
        "prompts.eval": [Prompt("make it red", {}, "/b.png")],
    }
    assert report_prompts(settings(), lists, {}).problems == report_prompts(settings(), lists, {}).notes == []
    lists = {"prompts.train": [Prompt("a cat", {}, None, ("a cat", "one cat"))], "prompts.eval": prompts("One cat")}
    assert len(report_prompts(settings(), lists, {}).problems) == 1


@pytest.mark.parametrize("kind", ["encoder", "reward"])
def test_prompts_that_are_cut_are_counted_refused_or_passed_over(kind):
    lists = {"prompts.train": prompts("a" * 7, "b" * 8, "c" * 9, "\u00e4" * 20), "prompts.eval": prompts("short")}
    scored = {"prompts.train": [scorer(**letters(8))]} if kind == "reward" else {}

    def report(way):
        made = report_prompts(settings(too_long=way), lists, scored)
        if kind == "encoder":
            add_encoders(made, settings(too_long=way), lists, [TextReader("an encoder", 8, len)])
        return made

    (note,) = report("warn").notes
    assert note.startswith("2 of the 4 texts of prompts.train are longer than") and "'ccccccccc'" in note
    assert report("warn").problems == []
    assert len(report("refuse").problems) == 1 and report("refuse").notes == []
    assert report("cut").problems == report("cut").notes == []


@pytest.mark.parametrize(
    ("bad", "good", "way", "refused"),
    [
        (1, 9, "refuse", False),
        (2, 9, "refuse", True),
        (2, 9, "warn", False),
        (3, 0, "warn", True),
        (0, 3, "refuse", False),
    ],
)
def test_prompts_that_a_reward_cannot_score_are_counted_and_refused_beyond_a_tenth(bad, good, way, refused):
    listed = [Prompt(f"bad {n}") for n in range(bad)] + [Prompt(f"good {n}", {"text": f"T{n}"}) for n in range(good)]
    lists = {"prompts.train": listed, "prompts.eval": listed[-1:]}
    report = report_prompts(settings(unscored=way, eval_on_train=True), lists, {"prompts.train": [scorer(asks=asks)]})
    said = [line for line in (report.problems if refused else report.notes) if "cannot score" in line]
    assert len(said) == bool(bad) and bool(report.problems) == refused
    assert all(f"{bad} of the {bad + good} prompts" in line and "bad 0" in line and "no text" in line for line in said)
    assert any("looks for T0" in note for note in report.notes) == (good > 0)


def test_a_wrapped_reward_and_a_stand_in_are_asked_too():
    lists = {"prompts.train": prompts("a cat", "a dog")}
    inner = SimpleNamespace(spec=SPEC, asks=asks, towers=SimpleNamespace(**letters(4)))
    wrapped = SimpleNamespace(name="mean", scorer=SimpleNamespace(spec=replace(SPEC, name="mean"), scorer=inner))
    report = report_prompts(settings(), lists, {"prompts.train": [wrapped]})
    assert "2 of the 2 texts" in report.notes[0] and "cannot score 2 of the 2" in report.problems[0]

    class Away:
        spec, text_limit, asks = SPEC, 4, staticmethod(globals()["asks"])

    stand_in = SimpleNamespace(name="away", scorer=Away)
    report = report_prompts(settings(), lists, {"prompts.train": [stand_in]})
    assert report.notes == [] and "cannot score 2 of the 2" in report.problems[0]
