"""What the scoring service and its client say to each other: batches and scores as bytes, and back.

A request is JSON with lossless pictures in base64, or one safetensors file: a uint8 tensor `media` (B, 3, H, W) or
(B, F, 3, H, W), and the rest as JSON in its header. Nothing here runs what it reads: no pickle. An answer is JSON, in
which a score that is not there is null. Pure functions: the network is elsewhere, and so is the reading of requests,
which trusts nothing (request_body.py).
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal, Self, TypeVar

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, FailFast, Field, InstanceOf, TypeAdapter, ValidationError, model_validator
from torch import Tensor

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec
from reward_models.common.errors import RewardError
from reward_models.common.messages import brief
from reward_models.serving.lossless import encode_picture

JSON, SAFETENSORS = "application/json", "application/x-safetensors"
TOKEN_VARIABLE = "DIFFRL_REWARD_TOKEN"
Format = Literal["safetensors", "png", "webp"]
Text = InstanceOf[str]
"""pydantic's own `str` refuses lone surrogates, which JSON can write and prompts may hold."""
Whole = Annotated[int, Field(ge=1)]
Amount = Annotated[int | float, Field(gt=0, lt=math.inf)]
M = TypeVar("M", bound=BaseModel)
Numbers = list[Annotated[float, Field(allow_inf_nan=False)] | None]


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

    model_config = ConfigDict(strict=True)

    prompts: Annotated[list[Text], FailFast(), Field(description="a list of texts, one a sample")] = []
    metadata: Annotated[
        list[InstanceOf[dict[str, Any]]] | None, FailFast(), Field(description="a list of objects, one a sample")
    ] = None
    fps: Annotated[float | None, Field(gt=0, le=1e6, description="a number > 0, or null")] = None
    groups: Annotated[list[int] | None, FailFast(), Field(description="a list of whole numbers, one a sample")] = None


class Scores(BaseModel):
    """An answer with scores.

    Args:
        raw: scores; null where there is none.
        ok: whether there is one.
        errors: why there is none.
        parts: by name, as `raw`.
        version: the scorer's `spec.version`.
        notes: reasons in words, or null; empty where the scorer gives none, as with servers before there were any.
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
            raise ValueError("every sample must have a score or be not ok, and a place in every list")
        return self


class Limits(BaseModel):
    """What the service takes on.

    Args:
        max_body_mb: size of a request, in 10^6 bytes.
        max_side_mb: what a request says beside its media: prompts, metadata, ...
        max_values: values in a request's JSON, counted before it is parsed by its commas and opening brackets.
        max_media_mb: size of a request's media once decoded.
        max_pixels: of one picture or frame.
        max_samples: of one request.
        max_batch: samples given to a scorer at once; requests for one scorer with media of one size are joined.
        max_batch_pixels: of the samples given to a scorer at once, all frames; a sample that has more comes alone.
        max_wait_ms: how long a request waits for others to join it, in milliseconds.
        queue_size: requests that are waiting or scored at one time, from their last byte on; more are answered 503.
        max_held_mb: memory that requests may take at one time, received, parsed and decoded; more are answered 503.
        body_timeout: seconds in which each further 256 kB of a body, or its end, have to arrive.
        request_timeout: seconds from a request's first byte to its answer.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    max_body_mb: Amount = 64
    max_side_mb: Amount = 4
    max_values: Whole = 200_000
    max_media_mb: Amount = 256
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
        if self.max_held_mb < self.max_body_mb + self.max_media_mb:
            raise ValueError(
                "max_held_mb must hold at least one request, max_body_mb + max_media_mb; "
                f"{self.max_held_mb:g} < {self.max_body_mb:g} + {self.max_media_mb:g}"
            )
        return self


class Listing(BaseModel):
    """The answer to GET /v1/rewards: specs as JSON by name, and the limits that clients keep to."""

    rewards: dict[str, dict[str, Any]]
    limits: Limits


def encode_request(batch: RewardBatch, form: Format = "safetensors") -> tuple[str, bytes]:
    """A batch as the body of a request.

    Args:
        batch: any batch; its media may be on any device.
        form: "safetensors" (raw, fastest), "png" or "webp" (smaller, lossless as well).

    Returns:
        The content type and the body.

    Raises:
        RewardError: metadata that JSON cannot carry.
    """
    media = batch.media.detach().cpu().contiguous()
    side: dict[str, Any] = {"prompts": list(batch.prompts)}
    if batch.metadata:
        side["metadata"] = [dict(entry) for entry in batch.metadata]
    if batch.fps is not None:
        side["fps"] = batch.fps
    if batch.groups:
        side["groups"] = [int(group) for group in batch.groups]
    try:
        if form == "safetensors":
            header = {key: json.dumps(value, allow_nan=False) for key, value in side.items()}
            return SAFETENSORS, safetensors.torch.save({"media": media}, metadata=header)
        clips = media if batch.kind == "video" else media[:, None]
        files = [[base64.b64encode(encode_picture(frame, form)).decode() for frame in clip] for clip in clips]
        side["media"] = files if batch.kind == "video" else [file for (file,) in files]
        return JSON, json.dumps(side, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RewardError(
            "Metadata must be JSON to be sent to a reward server: texts, finite numbers, true, false, null, lists and "
            f"mappings of them. Got something else: {error}. Convert it in the prompts' file."
        ) from error


def encode_output(output: RewardOutput, version: str) -> bytes:
    """Scores as the body of an answer; float32 survives exactly, what is not finite is null.

    Args:
        output: of one request.
        version: the scorer's `spec.version`.
    """
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
    """Scores and version in the body of an answer.

    Args:
        body: what the server sent.
        count: samples that were asked for.

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


def _read(kind: type[M], body: bytes) -> M:
    """JSON as this model; what is wrong is told in one line."""
    try:
        return kind.model_validate(json.loads(body))  # pydantic's own parser refuses lone surrogates
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))} {first['msg']}".strip()) from None


def _tensor(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float32)


def encode_spec(spec: ScorerSpec) -> dict[str, Any]:
    """A spec as JSON; a range without a bound has null there."""
    return {**asdict(spec), "range": [bound if math.isfinite(bound) else None for bound in spec.range]}


def decode_spec(spec: Mapping[str, Any]) -> ScorerSpec:
    """The spec that a server tells; fields of a newer server that are unknown here are left out.

    Raises:
        ValueError: it is none.
    """
    try:
        low, high = spec["range"]
        bounds = (-math.inf if low is None else low, math.inf if high is None else high)
        return TypeAdapter(ScorerSpec).validate_python({**spec, "range": bounds})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no description of a reward ({error!r})") from error


def decode_listing(body: bytes) -> Listing:
    """A server's answer to GET /v1/rewards.

    Raises:
        ValueError: it is no such answer.
    """
    return _read(Listing, body)
