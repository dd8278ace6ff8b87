"""The one codec of the scoring service and its client: batches and scores as bytes, and back.

A request is one safetensors file: a uint8 tensor `media` (B, 3, H, W) or (B, F, 3, H, W), and in its metadata the text
`batch`, JSON of the fields of `Side`. An answer is JSON, in which a score that is not there is null. Nothing here runs
what it reads: no pickle. Nothing large is made before it is allowed; whatever the bytes of a request are, the end is a
batch or a `RefusedError`. Pure functions: the network is elsewhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, Self, TypeVar

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, FailFast, Field, InstanceOf, TypeAdapter, ValidationError, model_validator
from torch import Tensor

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec
from reward_models.common.errors import RewardError
from reward_models.common.messages import brief
from reward_models.common.sections import Section, first_problem

PROTOCOL, PROTOCOL_HEADER = 2, "Diffrl-Protocol"
"""What every request names in its header; it changes whenever older clients or servers would be misunderstood."""
SAFETENSORS = "application/x-safetensors"
TOKEN_VARIABLE = "DIFFRL_REWARD_TOKEN"
VALUE_BYTES = 256
"""Bytes that a value takes once JSON is parsed, at most, beside its text: a key and an object to be in."""
FILE_RULE = (
    "A request is a safetensors file of one tensor, `media`, uint8 (U8) RGB of shape (B, 3, H, W) or (B, F, 3, H, W), "
    "with the text `batch` in its metadata."
)
SIDE_RULE = (
    "`batch` is a JSON object of prompts, a list of texts, and where needed metadata, a list of objects, groups, a "
    "list of whole numbers, and fps, a number > 0."
)

Text = InstanceOf[str]
"""pydantic's own `str` refuses lone surrogates, which JSON can write and prompts may hold."""
Whole = Annotated[int, Field(ge=1)]
Amount = Annotated[int | float, Field(gt=0, lt=math.inf)]
M = TypeVar("M", bound=BaseModel)
Numbers = list[Annotated[float, Field(allow_inf_nan=False)] | None]
Reserve = Callable[[int], None]


class RefusedError(Exception):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        sentence: the rule, what was received and the way out.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence if len(sentence) < 600 else sentence[:600] + "..."


class Side(BaseModel):
    """What a request says beside its media. The first mistake ends a list: a million of them would fill the memory."""

    model_config = ConfigDict(strict=True, extra="forbid")

    prompts: Annotated[list[Text], FailFast()]
    metadata: Annotated[list[InstanceOf[dict[str, Any]]], FailFast()] = []
    fps: Annotated[float | None, Field(gt=0, le=1e6)] = None
    groups: Annotated[list[int], FailFast()] = []


class _Tensor(BaseModel):
    model_config = ConfigDict(strict=True)

    dtype: Literal["U8"]
    shape: Annotated[list[Whole], FailFast(), Field(min_length=4, max_length=5)]
    data_offsets: Annotated[list[int], FailFast()]


class _Metadata(BaseModel):
    batch: Text


class _Header(BaseModel):
    """The header of a request's safetensors file."""

    model_config = ConfigDict(strict=True, extra="forbid")

    media: _Tensor
    metadata: Annotated[_Metadata, Field(alias="__metadata__")]


class Scores(BaseModel):
    """An answer with scores.

    Args:
        raw: scores; null where there is none.
        ok: whether there is one.
        errors: why there is none.
        parts: by name, as `raw`.
        version: the scorer's `spec.version`.
        notes: reasons in words, or null; empty where the scorer gives none.
    """

    model_config = ConfigDict(strict=True)

    raw: Numbers
    ok: list[bool]
    errors: list[Text | None]
    parts: dict[Text, Numbers]
    version: str
    notes: list[Text | None] = []

    @model_validator(mode="after")
    def _fits(self) -> Self:
        counts = {len(self.raw), len(self.ok), len(self.errors), *map(len, self.parts.values())}
        counts |= {len(self.notes)} if self.notes else set()
        if len(counts) > 1 or [score is not None for score in self.raw] != self.ok:
            raise ValueError("every sample must have a score or be not ok, and an entry in every list")
        return self


class Limits(Section):
    """What the service takes on.

    Args:
        max_body_mb: size of a request, in 10^6 bytes.
        max_side_mb: what a request says beside its media: prompts, metadata, ...
        max_values: values in a request's JSON, counted before it is parsed by its commas and opening brackets.
        max_pixels: of one image or frame.
        max_samples: of one request.
        max_batch: samples that a scorer gets at once; requests for one scorer with media of one size are joined.
        max_batch_pixels: of the samples that a scorer gets at once, all frames; a sample that has more comes alone.
        max_wait_ms: how long a request waits for others to join it, in milliseconds.
        queue_size: requests that are waiting or scored at one time, from their last byte on; more are answered 503.
        max_held_mb: memory that requests may take at one time, received and parsed; more are answered 503.
        body_timeout: seconds in which each further 256 kB of a body, or its end, have to arrive.
        request_timeout: seconds from a request's first byte to its answer.
    """

    max_body_mb: Amount = 256
    max_side_mb: Amount = 4
    max_values: Whole = 200_000
    max_pixels: Whole = 4096 * 4096
    max_samples: Whole = 256
    max_batch: Whole = 16
    max_batch_pixels: Whole = 4096 * 4096
    max_wait_ms: Annotated[int | float, Field(ge=0, lt=math.inf)] = 5.0
    queue_size: Whole = 64
    max_held_mb: Amount = 1024
    body_timeout: Amount = 10.0
    request_timeout: Amount = 120.0

    @model_validator(mode="after")
    def _holds_one_request(self) -> Self:
        if self.max_held_mb < self.max_body_mb:
            raise ValueError(
                f"max_held_mb must hold at least one request, max_body_mb; {self.max_held_mb:g} < {self.max_body_mb:g}"
            )
        return self


class Listing(BaseModel):
    """The answer to GET /v1/rewards: specs as JSON by name, and the limits and the protocol that clients keep to."""

    rewards: dict[str, dict[str, Any]]
    limits: Limits
    protocol: int = 1


def encode_request(batch: RewardBatch) -> bytes:
    """Return a batch, whose media may be on any device, as the body of a request.

    Raises:
        RewardError: metadata that JSON cannot carry.
    """
    side = {
        "prompts": list(batch.prompts),
        "metadata": [dict(entry) for entry in batch.metadata],
        "fps": batch.fps,
        "groups": [int(group) for group in batch.groups],
    }
    try:
        text = json.dumps(side, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RewardError(
            "Metadata must be JSON to be sent to a reward server: texts, finite numbers, true, false, null, lists and "
            f"mappings of them. Got something else: {error}. Convert it in the prompts' file."
        ) from error
    return safetensors.torch.save({"media": batch.media.detach().cpu().contiguous()}, metadata={"batch": text})


def decode_request(body: bytearray, limits: Limits, reserve: Reserve = lambda size: None) -> RewardBatch:
    """Return the batch in the body of a request.

    Args:
        body: its bytes. The media are not copied: it must not be changed any more.
        limits: of the service.
        reserve: called with the bytes that parsing will take before they are taken. May raise a `RefusedError`.

    Raises:
        RefusedError: 400 not such a file, 413 too much, 422 fields that do not fit each other.
    """
    length = int.from_bytes(body[:8], "little")
    if len(body) < 8 or length > len(body) - 8:
        raise RefusedError(400, "The body is not a whole safetensors file. Send it again.")
    if length > limits.max_side_mb * 1e6:
        raise RefusedError(
            413,
            f"What a request says beside its media may have {limits.max_side_mb:g} MB. Got {length / 1e6:.1f} MB. Send "
            "shorter prompts and metadata, or fewer samples at once.",
        )
    header = _read_bounded(_Header, bytes(body[8 : 8 + length]), FILE_RULE, limits, reserve)
    shape = header.media.shape
    _require_allowed(shape, limits)
    size = math.prod(shape)
    if shape[-3] != 3 or header.media.data_offsets != [0, size] or len(body) != 8 + length + size:
        raise RefusedError(400, f"{FILE_RULE} Got a shape of {shape} and {len(body) - 8 - length} bytes of media.")
    side = _read_bounded(Side, header.metadata.batch.encode("utf-8", "surrogatepass"), SIDE_RULE, limits, reserve)
    media = torch.frombuffer(body, dtype=torch.uint8, count=size, offset=8 + length).reshape(shape)
    try:
        return RewardBatch(media, side.prompts, side.metadata, side.fps, side.groups)
    except RewardError as error:
        raise RefusedError(422, str(error)) from None


def _read_bounded(kind: type[M], data: bytes, rule: str, limits: Limits, reserve: Reserve) -> M:
    """Read JSON unless it may have too many values; the memory that it takes is reserved before."""
    values = sum(data.count(mark) for mark in (b",", b"[", b"{"))  # each follows a comma or begins in brackets
    if values > limits.max_values:
        raise RefusedError(
            413, f"A request may have {limits.max_values} values. It has up to {values}. Send fewer at once."
        )
    reserve(VALUE_BYTES * values + 4 * len(data))  # a text has up to four bytes a character
    try:
        return _read(kind, data)
    except ValueError as error:
        raise RefusedError(400, f"{rule} Got something else: {str(error)[:200]}.") from None


def _require_allowed(shape: Sequence[int], limits: Limits) -> None:
    height, width = shape[-2:]
    if shape[0] > limits.max_samples:
        raise RefusedError(413, f"A request may have {limits.max_samples} samples. Got {shape[0]}. Send fewer at once.")
    if height * width > limits.max_pixels:
        raise RefusedError(
            413, f"An image may have up to {limits.max_pixels} pixels. Got {width} x {height}. Make it smaller."
        )


def encode_output(output: RewardOutput, version: str) -> bytes:
    """Return scores as the body of an answer; float32 survives exactly, what is not finite is null."""
    raw, ok, errors = _numbers(output.raw), output.ok.tolist(), list(output.errors)
    for row, value in enumerate(raw):
        if ok[row] and value is None:
            ok[row], errors[row] = False, "the scorer returned a score that is not finite"
        elif not ok[row]:
            raw[row] = None
    parts = {name: _numbers(values) for name, values in output.parts.items()}
    scores = Scores(raw=raw, ok=ok, errors=errors, parts=parts, version=version, notes=list(output.notes))
    return json.dumps(dict(scores), allow_nan=False).encode()


def _numbers(values: Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.detach().float().cpu().tolist()]


def decode_output(body: bytes, count: int) -> tuple[RewardOutput, str]:
    """Return the scores of `count` samples and the scorer's version from the body of an answer.

    Raises:
        ValueError: it is cut off, or not an answer to this many samples.
    """
    scores = _read(Scores, body)
    if len(scores.raw) != count:
        raise ValueError(f"scores of {count} samples were expected, of {len(scores.raw)} came")
    errors = [None if good else error or "not scored" for good, error in zip(scores.ok, scores.errors, strict=True)]
    parts = {name: _tensor(values) for name, values in scores.parts.items()}
    notes = [note and brief(note) for note in scores.notes]
    ok = torch.tensor(scores.ok, dtype=torch.bool)
    return RewardOutput(_tensor(scores.raw), ok, errors, parts, notes if any(notes) else ()), scores.version


def _tensor(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float32)


def encode_listing(specs: Mapping[str, ScorerSpec], limits: Limits) -> bytes:
    """Return the answer to GET /v1/rewards; a range without a bound has null there."""
    return (
        Listing(rewards={name: spec.as_json() for name, spec in specs.items()}, limits=limits, protocol=PROTOCOL)
        .model_dump_json()
        .encode()
    )


def decode_listing(body: bytes) -> Listing:
    """Read a server's answer to GET /v1/rewards.

    Raises:
        ValueError: it is no such answer.
    """
    return _read(Listing, body)


def decode_spec(spec: Mapping[str, Any]) -> ScorerSpec:
    """Read the spec that a server tells; fields of a newer server that are unknown here are left out.

    Raises:
        ValueError: it is none.
    """
    try:
        low, high = spec["range"]
        bounds = (-math.inf if low is None else low, math.inf if high is None else high)
        return TypeAdapter(ScorerSpec).validate_python({**spec, "range": bounds})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no description of a reward ({error!r})") from error


def _read(kind: type[M], body: bytes) -> M:
    """Read JSON as this model.

    Raises:
        ValueError: it is none; one line says why.
    """
    try:  # pydantic's own parser refuses lone surrogates
        return kind.model_validate(json.loads(body, parse_constant=_refuse_constant))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValidationError as error:
        raise ValueError(first_problem(error, kind).rstrip(".")) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
