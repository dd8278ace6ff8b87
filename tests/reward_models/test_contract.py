"""Every registered scorer keeps to the contract; those with weights on tiny random ones in the published layout."""

import importlib
import os
import sys
from dataclasses import replace

import pytest
import torch

from reward_models import SCORERS, RewardBatch, RewardError, RewardOutput, ScorerSpec, check_scorer, load_reward
from reward_models.base import output_of_rows
from reward_models.registry import factory_of
from reward_models.self_test import self_test
from tests.tiers import daily

BUILDERS = [importlib.import_module(f"tests.reward_models.tiny_{name}") for name in ("basic", "clip", "vlm", "remote")]
TINY = {name: lambda folder, name=name: load_reward(name) for name in SCORERS if not factory_of(name).spec.weights}
TINY |= {name: build for module in BUILDERS for name, build in module.TINY.items()}
METADATA = {name: value for module in BUILDERS for name, value in getattr(module, "METADATA", {}).items()}


def test_no_scorer_is_left_out():
    assert sorted(TINY) == sorted(SCORERS)


STRICT = ("geneval_strict", "moving_shapes_strict", "shapes_strict")
"""A part of what another one computes."""


@pytest.mark.parametrize("name", daily(sorted(SCORERS), set(SCORERS) - {"ocr", *STRICT}, ["ocr"]))
def test_scorer_keeps_to_the_contract(name, tmp_path):
    scorer = TINY[name](tmp_path)
    assert check_scorer(scorer, METADATA.get(name)) == []


JUDGED_OR_SLOW = ("remote", "ocr", "open_nsfw", "vlm_judge")
WEIGHTLESS = [name for name in sorted(SCORERS) if not factory_of(name).spec.weights and name not in JUDGED_OR_SLOW]


@pytest.mark.parametrize("name", daily([*WEIGHTLESS, "ocr"], WEIGHTLESS))
def test_scorers_without_weights_to_fetch_tell_good_from_bad(name, tmp_path):
    assert self_test(TINY[name](tmp_path)).passed


class Brightness:
    """A scorer in ten lines, as in docs/rewards.md; the tests below break it in every way that the contract names."""

    spec = ScorerSpec(name="brightness", description="Mean brightness.", range=(0.0, 1.0), uses_prompt=False)

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        self.spec.require(batch)
        return output_of_rows([(float(picture.float().mean()) / 255, {}, None) for picture in batch.media])

    def to(self, device):
        return self


def score_as(values, ok=None, errors=None):
    count = len(values)
    return RewardOutput(
        torch.tensor(values), torch.tensor(ok or [True] * count), errors or [None] * count, {"part": torch.zeros(count)}
    )


class Changed(Brightness):
    def __init__(self, change):
        self.change = change

    def __call__(self, batch):
        self.spec.require(batch)
        return self.change(batch, super().__call__(batch))


def seen_before(calls=[]):  # noqa: B006 (the memory is the point)
    calls.append(1)
    return len(calls)


BROKEN = {
    "outside the range": lambda b, out: replace(out, raw=out.raw + 2),
    "must be NaN": lambda b, out: replace(out, ok=~torch.ones(len(b), dtype=torch.bool), errors=["no"] * len(b)),
    "but its score is nan": lambda b, out: replace(out, raw=out.raw * torch.nan),
    "ok=True and the error": lambda b, out: replace(out, errors=["but"] * len(b)),
    "No sample could be scored": lambda b, out: score_as([torch.nan] * len(b), [False] * len(b), ["no"] * len(b)),
    "`raw` must be float32": lambda b, out: replace(out, raw=out.raw.double()),
    "The part": lambda b, out: replace(out, parts={"part": torch.zeros(len(b) + 1)}),
    "`errors` must have": lambda b, out: replace(out, errors=[]),
    "in another order": lambda b, out: replace(out, raw=torch.linspace(0, 1, len(b))),
    "alone must score": lambda b, out: replace(out, raw=out.raw / len(b)),
    "same batch twice": lambda b, out: replace(out, raw=out.raw * 0 + 1 / (2 + seen_before())),
    "must not change the media": lambda b, out: (b.media.add_(1), out)[1],
    "raised ZeroDivisionError": lambda b, out: 1 / 0,
    "raised SystemExit": lambda b, out: sys.exit("no"),
    "other prompts must give": lambda b, out: replace(out, raw=out.raw * len(b.prompts[0]) / 100),
    "Scoring other prompts raised": lambda b, out: replace(out, raw=out.raw * ("red blue green".index(word(b)) >= 0)),
    "torch's global random numbers": lambda b, out: (torch.rand(1), out)[1],
    "nor seed them": lambda b, out: (torch.manual_seed(0), out)[1],
    "`raw` must not require gradients": lambda b, out: replace(out, raw=out.raw.requires_grad_()),
    "The part 'part' must not require": lambda b, out: replace(
        out, parts={"part": torch.zeros(len(b), requires_grad=True)}
    ),
    "must be finite, or NaN": lambda b, out: replace(out, parts={"part": torch.full((len(b),), -torch.inf)}),
    "must be a RewardOutput": lambda b, out: out.raw,
    "`raw` must be a tensor": lambda b, out: replace(out, raw=out.raw.tolist()),
    "output cannot be read": lambda b, out: replace(out, parts=None),
    "Scoring a batch of one raised IndexError": lambda b, out: (out.ok[1], out)[1],
    "a batch of one raised RewardError": lambda b, out: out if len(b) > 1 else refuse(),
    "of 53 x 37 pixels raised RuntimeError": lambda b, out: (b.media.unfold(-1, 200, 200), out)[1],
    "Of 4 images of 53 x 37 pixels: `errors`": lambda b, out: (
        replace(out, errors=[None] * min(b.media.shape[-1], 4)) if b.media.shape[-1] > 40 else replace(out, errors=[])
    ),
    "It must leave the working directory as it was": lambda b, out: (os.chdir("/"), out)[1],
    "It must leave torch's default dtype as it was": lambda b, out: (torch.set_default_dtype(torch.float64), out)[1],
    "must not change the metadata": lambda b, out: ([meta.update(seen=1) for meta in b.metadata], out)[1],
}


def word(batch):
    """The colour that the prompt names; fails where it names none."""
    return next(part for part in batch.prompts[0].split() if part in ("red", "blue", "green"))


def refuse():
    raise RewardError("not one alone")


@pytest.mark.parametrize("sentence", BROKEN)
def test_each_broken_promise_is_found(sentence):
    assert any(sentence in problem for problem in check_scorer(Changed(BROKEN[sentence])))


def test_a_scorer_that_takes_anything_is_found():
    class Careless(Brightness):
        def __call__(self, batch):
            return output_of_rows([(0.5 + i * 0, {}, None) for i in range(len(batch))])

    assert any("must raise a RewardError for videos" in problem for problem in check_scorer(Careless()))

    class Demanding(Careless):
        spec = ScorerSpec(name="x", description="x", range=(0.0, 1.0), media=("image", "video"), requires=("key",))

    assert any("without key" in problem for problem in check_scorer(Demanding(), {"key": 1}))
    assert any(
        "requires key in the metadata, which the samples lack" in problem for problem in check_scorer(Demanding())
    )


@pytest.mark.parametrize("careless", ["of the second key", "of other rows"])
def test_a_scorer_that_makes_do_without_some_metadata_is_found(careless):
    class Demanding(Brightness):
        spec = replace(Brightness.spec, requires=("first", "second"))

        def __call__(self, batch):
            if careless == "of other rows":
                self.spec.require(batch.rows([0]))
            else:
                replace(self.spec, requires=("first",)).require(batch)
            factors = [batch.meta(row).get("second", 0.5) for row in range(len(batch))]
            return output_of_rows([(factor, {}, None) for factor in factors])

    problems = check_scorer(Demanding(), {"first": 1, "second": 0.25})
    missed = ["second"] if careless == "of the second key" else ["first", "second"]
    assert len(problems) == len(missed)
    for key, problem in zip(missed, problems, strict=True):
        assert f"must raise a RewardError for a batch whose last sample has no {key} in its metadata" in problem


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1. Got 0"),
        ({"requires": "include"}, "requires must be a tuple of keys"),
        ({"range": (1.0, 0.0)}, "range must be two numbers, .* Got \\(1.0, 0.0\\)"),
        ({"scaling": (0.0, 0.0)}, "scale not 0"),
        ({"media": ("sound",)}, "media must be of 'image' and 'video'"),
        ({"weights": "somewhere", "scope": "batch"}, "scope must be .*weights need their weights_license"),
    ],
)
def test_a_spec_without_a_fact_is_no_spec(change, sentence):
    with pytest.raises(RewardError, match=sentence):
        replace(Brightness.spec, **change)


class Unfinished(Brightness):
    contrasts = None

    def __init__(self, **parts):
        self.__dict__.update(parts)


def raises(*arguments):
    raise KeyError("unfinished")


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"to": raises}, "must return the scorer itself. It raised KeyError"),
        ({"to": lambda device: None}, "must return the scorer itself. Got NoneType"),
        ({"contrasts": raises}, "cannot be used: KeyError: 'unfinished'"),
        ({"contrasts": lambda: [1, 2]}, "cannot be used: AttributeError"),
    ],
)
def test_no_part_of_a_scorer_ends_the_check(parts, sentence):
    assert [problem for problem in check_scorer(Unfinished(**parts)) if sentence in problem]


def test_what_is_no_scorer_at_all():
    assert "ScorerSpec" in check_scorer(object())[0]

    class NotYet(Brightness):
        @property
        def spec(self):
            raise RuntimeError("not yet")

    assert "ScorerSpec" in check_scorer(NotYet())[0]
    assert "must be callable" in check_scorer(type("Only", (), {"spec": Brightness.spec})())[0]
    assert "cannot be used" in check_scorer(Brightness(), samples=[])[0]


def test_the_check_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    check_scorer(Changed(BROKEN["nor seed them"]))
    assert torch.equal(torch.rand(3), expected) and torch.is_grad_enabled()


def test_a_group_of_one_may_be_refused_and_not_break():
    class Grouped(Brightness):
        spec = replace(Brightness.spec, scope="group")

        def __call__(self, batch):
            if len(batch) == 1:
                raise self.error("a group of one")
            return super().__call__(batch)

    scorer = Grouped()
    scorer.error = RewardError
    assert check_scorer(scorer) == []
    scorer.error = ZeroDivisionError
    assert check_scorer(scorer) == ["Scoring a group of one raised ZeroDivisionError: a group of one."]
