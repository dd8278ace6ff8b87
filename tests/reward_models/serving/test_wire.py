"""What travels between reward server and client: exact, and harmless whatever the bytes are."""

import base64
import io
import json
import math
import pickle
import struct
import tracemalloc
import zlib
from itertools import accumulate

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reward_models import RewardBatch, RewardError, RewardOutput
from reward_models.base import ScorerSpec
from reward_models.serving.lossless import encode_picture, picture_size
from reward_models.serving.request_body import decode_request
from reward_models.serving.server import make_app
from reward_models.serving.wire import (
    JSON,
    SAFETENSORS,
    Limits,
    RefusedError,
    decode_listing,
    decode_output,
    decode_spec,
    encode_output,
    encode_request,
    encode_spec,
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


def saved(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def picture(width=37, height=53, mode="RGB"):
    values = np.random.default_rng(3).integers(0, 256, (height, width, len(mode)), dtype=np.uint8)
    return Image.fromarray(values.squeeze())


def animation(form, **options):
    return saved(
        picture(), form, save_all=True, append_images=[picture().transpose(Image.Transpose.ROTATE_180)], **options
    )


def request_of(*files, **others):
    media = [
        [base64.b64encode(f).decode() for f in x] if isinstance(x, list) else base64.b64encode(x).decode()
        for x in files
    ]
    return json.dumps({"media": media, "prompts": ["p"] * len(files), **others}).encode()


def refusal(body, kind=JSON, **limits):
    with pytest.raises(RefusedError) as caught:
        decode_request(kind, body, Limits(**limits))
    return caught.value.status, caught.value.sentence


@pytest.mark.parametrize("form", ["safetensors", "png", "webp"])
@pytest.mark.parametrize("shape", [(3, 3, 37, 53), (1, 3, 61, 47), (2, 5, 3, 31, 29), (2, 1, 3, 1, 1)])
def test_a_batch_arrives_as_it_was(form, shape):
    batch = full_batch(*shape)
    got = decode_request(*encode_request(batch, form), Limits())
    assert torch.equal(got.media, batch.media) and got.media.dtype == torch.uint8
    assert (got.prompts, got.metadata, got.fps, got.groups) == (batch.prompts, batch.metadata, batch.fps, batch.groups)
    bare = decode_request(*encode_request(RewardBatch(batch.media, batch.prompts), form), Limits())
    assert (bare.metadata, bare.fps, bare.groups) == ([], None, [])


def test_reads_what_other_programs_write(tmp_path):
    """The documented request, made with PIL and with safetensors' own writer, not with ours."""
    image = picture()
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
    for file in (
        saved(image, "PNG"),
        saved(image, "WEBP", lossless=True),
        saved(image, "WEBP", lossless=True, xmp=b"x"),
    ):
        assert torch.equal(decode_request(f"{JSON}; charset=utf-8", request_of(file, file), Limits()).media[1], pixels)
    clip = decode_request(JSON, request_of([saved(image, "PNG")] * 2, fps=8), Limits())
    assert torch.equal(clip.media, pixels.expand(1, 2, -1, -1, -1)) and clip.fps == 8.0
    safetensors.torch.save_file(
        {"media": pixels[None].contiguous()}, tmp_path / "x", {"prompts": '["p"]', "fps": "null"}
    )
    assert torch.equal(decode_request(SAFETENSORS, (tmp_path / "x").read_bytes(), Limits()).media[0], pixels)
    grey = decode_request(JSON, request_of(saved(picture(mode="L"), "PNG")), Limits()).media[0]
    assert torch.equal(grey[0], grey[2]) and torch.equal(
        grey[0], torch.from_numpy(np.asarray(picture(mode="L")).copy())
    )
    alpha = decode_request(JSON, request_of(saved(picture(mode="RGBA"), "PNG")), Limits()).media[0]
    layer = np.asarray(picture(mode="RGBA")).astype(float)
    share = layer[..., 3:] / 255
    shown = torch.from_numpy(layer[..., :3] * share + 255 * (1 - share)).permute(2, 0, 1)  # on white
    assert (alpha.double() - shown).abs().max() <= 1


@pytest.mark.parametrize("form", ["png", "webp"])
@pytest.mark.parametrize("size", [(1, 1), (37, 53), (640, 3)])
def test_the_size_is_read_without_decoding(form, size):
    data = encode_picture(noise(3, size[1], size[0]), form)
    assert picture_size(data) == size == Image.open(io.BytesIO(data)).size


PNG = saved(picture(), "PNG")
TENSOR = {"media": noise(2, 3, 37, 53)}
CASES = {
    "no type": (request_of(PNG), "", 415, "no content type"),
    "another type": (pickle.dumps({}), "application/x-pickle", 415, "application/x-pickle"),
    "empty": (b"", JSON, 400, "not valid JSON"),
    "no utf-8": (b'{"a": "\xff\xfe"}', JSON, 400, "not valid JSON"),
    "nan": (b'{"media": [], "fps": NaN}', JSON, 400, "NaN is not JSON"),
    "deep": (b"[" * 200_000, JSON, 400, "not valid JSON"),
    "long number": (b'{"fps": 1' + b"0" * 5000 + b"}", JSON, 400, "not valid JSON"),
    "a list": (b"[1]", JSON, 400, "Got a list"),
    "no media": (b'{"prompts": []}', JSON, 422, "Got nothing"),
    "no pictures": (b'{"media": [], "prompts": []}', JSON, 422, "media must be a list"),
    "numbers as media": (b'{"media": [3], "prompts": ["p"]}', JSON, 422, "Got a number"),
    "a data address": (request_of(PNG).replace(b'["iVB', b'["data:image/png;base64,iVB'), JSON, 422, "base64"),
    "unknown field": (request_of(PNG, prompt="x"), JSON, 422, "'prompt'"),
    "prompts missing": (request_of(PNG, prompts=[]), JSON, 422, "Got 0 for 1 samples"),
    "prompts a text": (request_of(PNG, prompts="p"), JSON, 422, "prompts must be a list of texts"),
    "prompts numbers": (request_of(PNG, prompts=[1]), JSON, 422, "prompts must be a list of texts"),
    "metadata texts": (request_of(PNG, metadata=["x"]), JSON, 422, "metadata must be a list of objects"),
    "metadata object": (request_of(PNG, metadata={}), JSON, 422, "Got an object"),
    "metadata count": (request_of(PNG, metadata=[{}, {}]), JSON, 422, "Got 2 for 1 samples"),
    "groups true": (request_of(PNG, groups=[True]), JSON, 422, "groups must be a list of whole numbers"),
    "fps negative": (request_of(PNG, fps=-1), JSON, 422, "fps must be a number > 0"),
    "fps huge": (request_of(PNG, fps=10**400), JSON, 422, "fps must be a number > 0"),
    "JPEG": (request_of(PNG, saved(picture(), "JPEG")), JSON, 415, "Image 1 is a JPEG"),
    "lossy WebP": (request_of(saved(picture(), "WEBP")), JSON, 415, "lossy WebP"),
    "lossy WebP, extended": (request_of(saved(picture(), "WEBP", xmp=b"x")), JSON, 415, "lossy WebP"),
    "GIF": (request_of(saved(picture(), "GIF")), JSON, 415, "neither PNG nor WebP"),
    "nothing": (request_of(b""), JSON, 415, "neither PNG nor WebP"),
    "cut head": (request_of(PNG[:20]), JSON, 422, "cut off"),
    "cut body": (request_of(PNG[:200]), JSON, 422, "Image 0 cannot be decoded"),
    "cut WebP": (request_of(saved(picture(), "WEBP", lossless=True)[:300]), JSON, 422, "Image 0"),
    "WebP of nothing": (request_of(b"RIFF\0\0\0\0WEBP" + b"ABCD\0\0\0\0" * 100_000), JSON, 422, "no image"),
    "animated WebP": (request_of(animation("WEBP", lossless=True)), JSON, 422, "list of frames"),
    "animated PNG": (request_of(animation("PNG")), JSON, 422, "list of frames"),
    "16 bits": (request_of(saved(Image.new("I;16", (37, 53)), "PNG")), JSON, 422, "8 bits"),
    "two sizes": (request_of(PNG, saved(picture(53, 37), "PNG")), JSON, 422, "37x53, 53x37"),
    "mixed": (request_of(PNG, [PNG]), JSON, 422, "all clips of one length"),
    "clip lengths": (request_of([PNG], [PNG, PNG]), JSON, 422, "all clips of one length"),
    "empty clip": (request_of([], []), JSON, 422, "at least one frame"),
    "pickle": (pickle.dumps(TENSOR), SAFETENSORS, 400, "not a whole safetensors"),
    "cut tensor": (safetensors.torch.save(TENSOR)[:-1], SAFETENSORS, 400, "not a whole safetensors"),
    "long tensor": (safetensors.torch.save(TENSOR) + b"0", SAFETENSORS, 400, "not a whole safetensors"),
    "floats": (safetensors.torch.save({"media": torch.zeros(1, 3, 5, 7)}), SAFETENSORS, 422, "F32 of shape"),
    "two tensors": (safetensors.torch.save({**TENSOR, "b": torch.zeros(1)}), SAFETENSORS, 422, "one tensor"),
    "another name": (safetensors.torch.save({"x": TENSOR["media"]}), SAFETENSORS, 422, "one tensor"),
    "channels last": (safetensors.torch.save({"media": noise(1, 37, 53, 3)}), SAFETENSORS, 422, "(B, 3, H, W)"),
    "no samples": (safetensors.torch.save({"media": noise(0, 3, 5, 5)}), SAFETENSORS, 422, "(B, 3, H, W)"),
    "side no JSON": (safetensors.torch.save(TENSOR, {"prompts": "p"}), SAFETENSORS, 400, "prompts in the safetensors"),
    "side unknown": (safetensors.torch.save(TENSOR, {"format": '"pt"'}), SAFETENSORS, 422, "'format'"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused_and_how_it_is_told(case):
    body, kind, status, words = CASES[case]
    got, sentence = refusal(body, kind)
    assert got == status and words in sentence, (got, sentence)
    assert len(sentence) < 650 and sentence.endswith((".", "..."))


def bomb(width, height):
    """A PNG of a few bytes that states a huge size."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 99)), (b"IEND", b"")]
    made = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def test_large_media_are_refused_before_they_are_decoded(recwarn):
    reserved = []
    assert refusal(request_of(bomb(2**31 - 1, 2**31 - 1)))[0] == 413
    assert refusal(request_of(bomb(4097, 4096)))[0] == 413
    twice = bomb(5, 7)
    twice = twice[:33] + bomb(9000, 9000)[8:33] + twice[33:]  # a second size within the file
    assert refusal(request_of(twice)) == (413, "Image 0 has 9000 x 9000 pixels, where 1 to 16777216 are allowed.")
    assert refusal(request_of(*[PNG] * 5), max_samples=4) == (
        413,
        "A request may have 4 samples. Got 5. Send fewer at once.",
    )
    assert refusal(request_of(*[PNG] * 5), max_media_mb=0.029)[0] == 413  # 5 x 37 x 53 x 3 = 29,415 bytes
    decode_request(JSON, request_of(*[PNG] * 5), Limits(max_media_mb=0.0295), reserved.append)
    assert 29_415 in reserved and 29_415 <= sum(reserved) < 40_000 < max(accumulate(reserved))
    reserved.clear()
    decode_request(*encode_request(RewardBatch(noise(1, 2, 3, 5, 7), ["p"])), Limits(), reserved.append)
    assert 210 in reserved and 210 <= sum(reserved) < 10_000
    huge = json.dumps({"media": {"dtype": "U8", "shape": [1, 10**300, 3, 5, 5], "data_offsets": [0, 0]}}).encode()
    assert refusal(len(huge).to_bytes(8, "little") + huge, SAFETENSORS)[0] == 413
    assert not len(recwarn)


def test_json_is_not_parsed_if_that_would_take_much_more_memory_than_it_has_bytes():
    body = b'{"prompts": ["p"], "media": [' + b"[]," * 1_000_000 + b"1]}"  # 3 MB, 64 MB once it is parsed
    tracemalloc.start()
    try:
        assert refusal(body)[0] == 413
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1e6
    assert refusal(b"[" * 7 + b"1" + b"]" * 7, max_values=6)[0] == 413
    assert refusal(b"[" * 7 + b"1" + b"]" * 7, max_values=7)[0] == 400  # parsed, and no object
    header = json.dumps({"media": {}, "__metadata__": {"prompts": "[" + "1," * 9 + "1]"}}).encode()
    assert refusal(len(header).to_bytes(8, "little") + header, SAFETENSORS, max_values=9)[0] == 413


@pytest.mark.parametrize("form", ["safetensors", "png"])
def test_prompts_and_metadata_have_a_size_of_their_own(form):
    batch = RewardBatch(noise(1, 3, 37, 53), ["p"], [{"note": "x" * 5000}])
    kind, body = encode_request(batch, form)
    status, sentence = refusal(body, kind, max_side_mb=0.005)
    assert status == 413 and "beside its media" in sentence
    assert torch.equal(decode_request(kind, body, Limits(max_side_mb=0.006)).media, batch.media)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_bytes_do_more_than_be_refused(data):
    """Good requests with bytes changed, cut or added: a batch or a refusal, never another exception."""
    form = data.draw(st.sampled_from(["safetensors", "png", "webp"]))
    kind, body = encode_request(full_batch(2, 3, 5, 7), form)
    spoilt = bytearray(body)
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)), max_size=6)):
        spoilt[place] = value
    spoilt = spoilt[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else spoilt
    try:
        batch = decode_request(kind, bytes(spoilt) + data.draw(st.binary(max_size=3)), Limits(max_pixels=10_000))
    except RefusedError as error:
        assert error.status in (400, 413, 415, 422)
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
        {"raw": [1.0]}, {"raw": [1.0, 0.0]}, {"raw": [None, None]}, {"raw": ["1", None]}, {"ok": [1, 0]}, {"ok": None},
        {"parts": {"a": [1.0]}}, {"parts": []}, {"version": 1}, {"errors": [None]}, {"raw": [1e999, None]},
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_no_score(change):
    assert decode_output(json.dumps(GOOD).encode(), 2)[0].raw[0] == 1
    with pytest.raises(ValueError):
        decode_output(json.dumps({**GOOD, **change}).encode(), 2)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"raw": [', b"<html>", b"[" * 200_000])
def test_other_bytes_are_no_answer(body):
    with pytest.raises(ValueError):
        decode_output(body, 1)
    with pytest.raises(ValueError):
        decode_listing(body)


def test_a_spec_survives_with_infinite_bounds():
    spec = ScorerSpec("x", "y", (-math.inf, 3.0), media=("image", "video"), requires=("t",), scope="group", version="9")
    assert decode_spec(json.loads(json.dumps(encode_spec(spec), allow_nan=False))) == spec
    assert decode_spec({**encode_spec(spec), "new_field": 1}) == spec
    with pytest.raises(ValueError, match="no description"):
        decode_spec({"name": "x"})


def test_metadata_that_json_cannot_carry_are_refused_by_the_client():
    for value in (torch.zeros(1), math.nan, {1, 2}):
        with pytest.raises(RewardError, match="Metadata must be JSON"):
            encode_request(RewardBatch(noise(1, 3, 5, 7), ["p"], [{"x": value}]))


@pytest.mark.parametrize(
    "limits",
    [{"max_batch": 0}, {"max_batch": 2.5}, {"queue_size": True}, {"max_body_mb": 0}, {"max_wait_ms": -1},
     {"request_timeout": math.inf}, {"max_held_mb": 300}, {"max_pixels": "9"}],
)  # fmt: skip
def test_limits_that_let_nothing_through_are_refused(limits):
    with pytest.raises(RewardError, match=next(iter(limits))):
        make_app({"mean": Mean()}, **limits)
