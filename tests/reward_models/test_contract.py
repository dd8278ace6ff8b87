"""Every registered scorer keeps to the contract; those with weights on tiny random ones in the published layout."""

import importlib
from dataclasses import replace

import pytest
import torch

from reward_models import SCORERS, RewardBatch, RewardOutput, ScorerSpec, check_scorer, load_reward
from reward_models.base import output_of_rows

BUILDERS = [importlib.import_module(f"tests.reward_models.tiny_{name}") for name in ("basic", "clip", "vlm", "remote")]
TINY = {name: build for module in BUILDERS for name, build in module.TINY.items()}
TINY |= {name: lambda folder, name=name: load_reward(name) for name in SCORERS if "shapes" in name}
METADATA = {name: value for module in BUILDERS for name, value in getattr(module, "METADATA", {}).items()}


def test_no_scorer_is_left_out():
    assert sorted(TINY) == sorted(SCORERS)


@pytest.mark.parametrize("name", sorted(SCORERS))
def test_scorer_keeps_to_the_contract(name, tmp_path):
    scorer = TINY[name](tmp_path)
    assert check_scorer(scorer, METADATA.get(name)) == []


class Brightness:
    """A scorer in ten lines, as in docs/rewards.md; the tests below break it in every way that the contract names."""

    spec = ScorerSpec(name="brightness", description="Mean brightness.", range=(0.0, 1.0), uses_prompt=False)

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        self.spec.require(batch)
        return output_of_rows([(float(picture.float().mean()) / 255, {}, None) for picture in batch.media])

    def to(self, device):
        return self


def test_a_scorer_of_ten_lines_passes():
    assert check_scorer(Brightness()) == []


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
    "`raw` must be": lambda b, out: replace(out, raw=out.raw.double()),
    "The part": lambda b, out: replace(out, parts={"part": torch.zeros(len(b) + 1)}),
    "`errors` must have": lambda b, out: replace(out, errors=[]),
    "in another order": lambda b, out: replace(out, raw=torch.linspace(0, 1, len(b))),
    "alone must score": lambda b, out: replace(out, raw=out.raw / len(b)),
    "same batch twice": lambda b, out: replace(out, raw=out.raw * 0 + 1 / (2 + seen_before())),
    "must not change the media": lambda b, out: (b.media.add_(1), out)[1],
    "raised ZeroDivisionError": lambda b, out: 1 / 0,
}


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


def test_a_scorer_without_spec_or_with_a_bad_one():
    assert "ScorerSpec" in check_scorer(object())[0]
    bad = Brightness()
    bad.spec = replace(bad.spec, range=(1.0, 0.0), media=("sound",), scaling=(0.0, 0.0), weights="somewhere")
    assert len(check_scorer(bad)) == 5  # and the batch it then refuses
