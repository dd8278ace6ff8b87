"""The one place where scorers are asked: they reach nobody else, and whatever they do becomes one sentence."""

import copy
import sqlite3
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

from reward_models import RewardBatch, RewardError
from reward_models.asking import ask
from reward_models.base import RewardOutput, ScorerSpec, WithoutWeights
from reward_models.common.errors import BrokenScorerError


class Scorer(WithoutWeights):
    """Mean of each sample; `does` gets the batch first, `gives` what is returned."""

    spec = ScorerSpec("own", "Mean value.", (0.0, 255.0), media=("image", "video"))

    def __init__(self, does=lambda batch: None, gives=lambda output: output):
        self.does, self.gives = does, gives

    def __call__(self, batch):
        self.does(batch)
        raw, count = batch.media.flatten(1).float().mean(1), len(batch)
        return self.gives(RewardOutput(raw, torch.ones(count, dtype=torch.bool), [None] * count, {"half": raw / 2}))


def request(shape=(3, 3, 5, 7)):
    media = torch.arange(torch.tensor(shape).prod(), dtype=torch.int64).reshape(shape).to(torch.uint8)
    shared = {"objects": [{"color": "red", "at": (1, 2)}], "weight": float("nan")}  # of a prompt, for all its samples
    return RewardBatch(
        media, ["a", "a", "b"], [shared, shared, MappingProxyType({"box": torch.ones(2)})], 8.0, [0, 0, 1]
    )


TOUCHES = {
    "media": lambda b: b.media.mul_(0),
    "media by numpy": lambda b: b.media.numpy().fill(7),
    "media turned": lambda b: b.media.transpose_(0, 1),
    "metadata": lambda b: b.metadata[0].update(seen=True),
    "metadata far down": lambda b: b.metadata[1]["objects"][0].update(color="blue"),
    "metadata that is a tensor": lambda b: b.metadata[2]["box"].add_(1),
    "prompts": lambda b: b.prompts.reverse(),
    "groups": lambda b: b.groups.clear(),
}


@pytest.mark.parametrize("what", TOUCHES)
def test_a_scorer_that_works_in_place_reaches_nobody_and_is_named(what):
    batch = request()
    media, metadata = batch.media.clone(), copy.deepcopy([dict(meta) for meta in batch.metadata])
    with pytest.raises(RewardError, match=rf"The reward greedy works in place on batch\.{what.split()[0]}\."):
        ask(Scorer(TOUCHES[what]), batch, "greedy")
    assert torch.equal(batch.media, media) and batch.prompts == ["a", "a", "b"] and batch.groups == [0, 0, 1]
    assert batch.metadata[:2] == metadata[:2] and torch.equal(batch.metadata[2]["box"], metadata[2]["box"])


@pytest.mark.parametrize("shape", [(3, 3, 5, 7), (3, 2, 3, 5, 7)])
def test_a_scorer_sees_what_it_is_given(shape):
    seen, batch = [], request(shape)
    output = ask(Scorer(seen.append), batch, "own")
    (given,) = seen
    assert torch.equal(given.media, batch.media) and given.media.data_ptr() != batch.media.data_ptr()
    assert given.metadata[:2] == batch.metadata[:2] and given.metadata[0] is not batch.metadata[0]
    assert (given.prompts, given.groups, given.fps) == (["a", "a", "b"], [0, 0, 1], 8.0)
    assert output.raw.tolist() == batch.media.flatten(1).float().mean(1).tolist()


def test_metadata_that_cannot_be_copied_is_refused():
    class Refuses:
        def __deepcopy__(self, memo):
            raise TypeError("one of a kind")

    with pytest.raises(RewardError, match="metadata of samples must be plain values.*one of a kind"):
        ask(Scorer(), replace(request(), metadata=[{"model": Refuses()}] * 3), "own")


def test_scores_are_ours_alone():
    """A buffer that is written to again, and a graph that would be part of the update's."""
    buffer = torch.zeros(3, requires_grad=True)
    output = ask(Scorer(gives=lambda out: replace(out, raw=buffer, parts={"half": buffer * 2})), request(), "own")
    with torch.no_grad():
        buffer.fill_(9.0)
    assert output.raw.tolist() == [0.0] * 3
    assert not output.raw.requires_grad and not output.parts["half"].requires_grad


def raising(error):
    def does(batch):
        raise error

    return Scorer(does)


class Panic(BaseException):
    """As of a library in Rust."""


class UnreadableError(Exception):
    def __str__(self):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit(0), "SystemExit: 0"),
        (Panic("poisoned"), "Panic: poisoned"),
        (OSError("caf\udce9 \x1b[2J\0"), "OSError: caf\ufffd \ufffd\\[2J\ufffd"),
        (ValueError("x" * 100_000), r"ValueError: x{490,500}\.\.\."),
        (UnreadableError(), "UnreadableError: a message that cannot be read"),
    ],
)
def test_whatever_is_raised_becomes_a_sentence_that_can_be_stored(error, told):
    with pytest.raises(BrokenScorerError, match=f"The reward own failed on 'a' and 2 others: {told}") as caught:
        ask(raising(error), request(), "own")
    assert len(str(caught.value)) < 1000 and caught.value.__cause__ is error
    str(caught.value).encode()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_what_is_not_the_scorers_goes_through(error):
    with pytest.raises(type(error)):
        ask(raising(error), request(), "own")


def test_messages_of_samples_and_refusals_can_be_stored():
    def fails(output):
        return replace(output, ok=torch.zeros(3, dtype=torch.bool), errors=["\ud800", "y" * 9999, "\0"])

    output = ask(Scorer(gives=fails), request(), "own")
    rows = sqlite3.connect(":memory:").execute("select ?, ?, ?", output.errors).fetchone()
    assert rows[0] == rows[2] == "\ufffd" and len(rows[1]) == 500
    with pytest.raises(RewardError) as caught:
        ask(raising(RewardError("no face in \ud800")), request(), "own")
    assert str(caught.value) == "no face in \ufffd"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"parts": {"\ud800": torch.zeros(3)}}, "names of at most 100 characters"),
        ({"parts": None}, "TypeError"),
        ({"errors": [None, OSError("x"), None]}, r"`errors` must be text or None. Got OSError\('x'\)"),
        ({"raw": torch.zeros(3, device="meta")}, "no dense tensor of real numbers"),
        ({"parts": {"half": torch.zeros(3).to_sparse()}}, "no dense tensor of real numbers"),
    ],
)
def test_an_output_that_cannot_be_read_is_one_sentence(change, told):
    with pytest.raises(BrokenScorerError, match=told):
        ask(Scorer(gives=lambda output: replace(output, **change)), request(), "own")
