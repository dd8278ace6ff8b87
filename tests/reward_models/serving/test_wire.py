"""What travels between reward server and client: exact, and harmless whatever the bytes are."""

import json
import math
import pickle
import tracemalloc

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_models import RewardBatch, RewardError, RewardOutput
from reward_models.base import ScorerSpec
from reward_models.serving.server import make_app
from reward_models.serving.wire import (
    Limits,
    RefusedError,
    decode_listing,
    decode_output,
    decode_request,
    decode_spec,
    encode_listing,
    encode_output,
    encode_request,
)
from tests.reward_models.serving.test_microbatch import Mean


def noise(*shape):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(7), dtype=torch.uint8)


def full_batch(*shape):
    count = shape[0]
    return RewardBatch(
        noise(*shape),
        ["a \u00e9\u4e2d\U0001f600 \ud800 'quoted' \"prompt\"\n", *["b"] * (count - 1)],
        [{"target": "x\u2028", "boxes": [[1, 2.5, None, True]]}, *[{}] * (count - 1)],
        7.3 if len(shape) == 5 else None,
        [5, *[-1] * (count - 1)],
    )


def decoded(body, **limits):
    return decode_request(bytearray(body), Limits(**limits))


def refusal(body, **limits):
    with pytest.raises(RefusedError) as caught:
        decoded(body, **limits)
    return caught.value.status, caught.value.sentence


@pytest.mark.parametrize("shape", [(3, 3, 37, 53), (2, 5, 3, 31, 29)])
def test_a_batch_arrives_as_it_was(shape):
    batch = full_batch(*shape)
    got = decoded(encode_request(batch))
    assert torch.equal(got.media, batch.media) and got.media.dtype == torch.uint8
    assert (got.prompts, got.metadata, got.fps, got.groups) == (batch.prompts, batch.metadata, batch.fps, batch.groups)
    bare = decoded(encode_request(RewardBatch(batch.media, batch.prompts)))
    assert (bare.metadata, bare.fps, bare.groups) == ([], None, [])


MEDIA = noise(1, 3, 37, 53)


def written(media=MEDIA, text=None, **side):
    """A request of another program: by safetensors' own writer."""
    text = json.dumps({"prompts": ["p"], **side}) if text is None else text
    return safetensors.torch.save({"media": media}, {"batch": text})


def with_header(**header):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def test_reads_what_other_programs_write():
    got = decoded(written(noise(1, 2, 3, 5, 7), fps=8, metadata=[{"a": [1]}]))
    assert torch.equal(got.media, noise(1, 2, 3, 5, 7)) and got.fps == 8.0 and got.meta(0) == {"a": [1]}


WHOLE = written()
BATCH = {"batch": '{"prompts": ["p"]}'}
CASES = {
    "pickle": (pickle.dumps({"media": MEDIA}), 400, "not a whole safetensors"),
    "cut off": (WHOLE[:-1], 400, "bytes of media"),
    "floats": (safetensors.torch.save({"media": torch.zeros(1, 3, 5, 7)}, BATCH), 400, "media.dtype"),
    "two tensors": (safetensors.torch.save({"media": MEDIA, "b": MEDIA + 1}, BATCH), 400, "of one tensor"),
    "no metadata": (safetensors.torch.save({"media": MEDIA}), 400, "__metadata__"),
    "channels last": (written(noise(1, 37, 53, 3)), 400, "(B, 3, H, W)"),
    "no samples": (written(noise(0, 3, 5, 5)), 400, "media.shape.0"),
    "lying offsets": (with_header(media={"dtype": "U8", "shape": [1, 3, 1, 1], "data_offsets": [0, 9]},
                                  __metadata__=BATCH) + b"abc", 400, "bytes of media"),
    "nan": (written(text='{"prompts": ["p"], "fps": NaN}'), 400, "NaN is not JSON"),
    "deep": (written(text="[" * 190_000), 400, "nested too deep"),
    "long number": (written(text='{"fps": 1' + "0" * 5000 + "}"), 400, "`batch`"),
    "unknown field": (written(format="pt"), 400, "format is not a known key"),
    "prompts missing": (written(prompts=[]), 422, "Got 0 for 1 samples"),
    "metadata texts": (written(metadata=["x"]), 400, "metadata.0"),
    "fps huge": (written(fps=10**400), 400, "fps"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused_and_how_it_is_told(case):
    body, status, words = CASES[case]
    got, sentence = refusal(body)
    assert got == status and words in sentence, (got, sentence)
    assert len(sentence) < 650 and sentence.endswith((".", "..."))


def test_what_is_too_much_is_refused_before_it_is_made():
    assert refusal(written(noise(5, 3, 5, 7), prompts=["p"] * 5), max_samples=4) == (
        413,
        "A request may have 4 samples. Got 5. Send fewer at once.",
    )
    assert refusal(written(), max_pixels=37 * 53 - 1)[0] == 413
    huge = {"dtype": "U8", "shape": [1, 10**300, 3, 5, 5], "data_offsets": [0, 0]}
    assert refusal(with_header(media=huge, __metadata__=BATCH))[0] == 400
    long = written(metadata=[{"note": "x" * 5000}])
    status, sentence = refusal(long, max_side_mb=0.005)
    assert status == 413 and "beside its media" in sentence
    assert torch.equal(decoded(long, max_side_mb=0.006).media, MEDIA)


def test_json_is_not_parsed_if_that_would_take_much_more_memory_than_it_has_bytes():
    body = written(text='{"prompts": ["p"], "metadata": [' + "[]," * 1_000_000 + "1]}")  # 64 MB once it is parsed
    tracemalloc.start()
    try:
        assert refusal(body)[0] == 413
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(body)
    escaped = written(text='{"prompts": ["p"], "groups": [' + "1," * 30 + "1]}")
    assert refusal(escaped, max_values=20)[0] == 413
    reserved = []
    decode_request(bytearray(WHOLE), Limits(), reserved.append)
    assert len(reserved) == 2 and 0 < sum(reserved) < 10_000


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_no_bytes_do_more_than_be_refused(data):
    """Good requests with bytes changed, cut or added: a batch or a refusal, never another exception."""
    body = encode_request(full_batch(2, 3, 5, 7))
    spoilt = bytearray(body)
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)), max_size=6)):
        spoilt[place] = value
    spoilt = spoilt[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else spoilt
    try:
        batch = decoded(bytes(spoilt) + data.draw(st.binary(max_size=3)), max_pixels=10_000)
    except RefusedError as error:
        assert error.status in (400, 413, 422)
    else:
        assert isinstance(batch, RewardBatch)


def test_every_float32_survives_the_answer():
    bits = torch.randint(-(2**31), 2**31 - 1, (5000,), generator=torch.Generator().manual_seed(1), dtype=torch.int64)
    raw = bits.to(torch.int32).view(torch.float32)
    raw = raw[raw.isfinite()]
    count = len(raw)
    body = encode_output(RewardOutput(raw, torch.ones(count, dtype=torch.bool), [None] * count, {"a": -raw}), "v1")
    output, version = decode_output(body, count)
    assert version == "v1" and torch.equal(output.raw.view(torch.int32), raw.view(torch.int32))
    assert torch.equal(output.parts["a"].view(torch.int32), (-raw).view(torch.int32))


def test_failures_travel_as_null_and_infinite_scores_become_failures():
    raw = torch.tensor([1.5, math.nan, math.inf, 3.0])
    output = RewardOutput(raw, torch.tensor([True, False, True, False]), [None, "why \ud800", None, "late"], {"p": raw})
    body = encode_output(output, "2")
    assert json.loads(body)["raw"] == [1.5, None, None, None] and b"NaN" not in body and b"Infinity" not in body
    got, _ = decode_output(body, 4)
    assert got.ok.tolist() == [True, False, False, False] and got.raw.isnan().tolist() == [False, True, True, True]
    assert got.errors == [None, "why \ud800", "the scorer returned a score that is not finite", "late"]


GOOD = {"raw": [1.0, None], "ok": [True, False], "errors": [None, "e"], "parts": {"a": [1.0, None]}, "version": "1"}


@pytest.mark.parametrize(
    "change",
    [
        {"raw": [1.0]}, {"raw": [1.0, 0.0]}, {"raw": [None, None]}, {"raw": ["1", None]}, {"ok": [1, 0]},
        {"parts": {"a": [1.0]}}, {"version": 1}, {"raw": [1e999, None]},
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_no_score(change):
    assert decode_output(json.dumps(GOOD).encode(), 2)[0].raw[0] == 1
    with pytest.raises(ValueError):
        decode_output(json.dumps({**GOOD, **change}).encode(), 2)


@pytest.mark.parametrize("body", [b"[]", b'{"raw": [', b"[" * 200_000])
def test_other_bytes_are_no_answer(body):
    with pytest.raises(ValueError):
        decode_output(body, 1)
    with pytest.raises(ValueError):
        decode_listing(body)


def test_a_spec_survives_with_infinite_bounds():
    spec = ScorerSpec("x", "y", (-math.inf, 3.0), media=("image", "video"), requires=("t",), scope="group", version="9")
    told = decode_listing(encode_listing({"x": spec}, Limits())).rewards["x"]
    assert told["range"] == [None, 3.0] and decode_spec(told) == spec == decode_spec({**told, "new_field": 1})
    with pytest.raises(ValueError, match="no description"):
        decode_spec({"name": "x"})


def test_metadata_that_json_cannot_carry_are_refused_by_the_client():
    for value in (torch.zeros(1), math.nan, {1, 2}):
        with pytest.raises(RewardError, match="Metadata must be JSON"):
            encode_request(RewardBatch(noise(1, 3, 5, 7), ["p"], [{"x": value}]))


@pytest.mark.parametrize(
    "limits",
    [{"max_batch": 0}, {"queue_size": True}, {"request_timeout": math.inf}, {"max_held_mb": 200}],
)  # fmt: skip
def test_limits_that_let_nothing_through_are_refused(limits):
    with pytest.raises(RewardError, match=next(iter(limits))):
        make_app({"mean": Mean()}, **limits)
