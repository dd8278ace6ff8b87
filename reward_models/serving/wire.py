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
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec
from reward_models.errors import RewardError
from reward_models.serving.lossless import encode_picture

JSON, SAFETENSORS = "application/json", "application/x-safetensors"
TOKEN_VARIABLE = "DIFFRL_REWARD_TOKEN"
Format = Literal["safetensors", "png", "webp"]
SIDE = ("prompts", "metadata", "fps", "groups")
"""What a request says beside its media."""


class RefusedError(Exception):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        sentence: the rule, what was received and the way out.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence if len(sentence) < 600 else sentence[:600] + "..."


@dataclass(frozen=True)
class Limits:
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

    max_body_mb: float = 64
    max_side_mb: float = 4
    max_values: int = 200_000
    max_media_mb: float = 256
    max_pixels: int = 4096 * 4096
    max_samples: int = 256
    max_batch: int = 16
    max_batch_pixels: int = 4096 * 4096
    max_wait_ms: float = 5.0
    queue_size: int = 64
    max_held_mb: float = 1024
    body_timeout: float = 10.0
    request_timeout: float = 120.0

    def __post_init__(self) -> None:
        """Refuse what would let nothing through."""
        whole = ("max_values", "max_pixels", "max_samples", "max_batch", "max_batch_pixels", "queue_size")
        for item in fields(self):
            value = getattr(self, item.name)
            least = 0 if item.name == "max_wait_ms" else 1 if item.name in whole else 1e-6
            right = isinstance(value, int if item.name in whole else (int, float)) and not isinstance(value, bool)
            if not right or not least <= value < math.inf:
                kind = "a whole number >= 1" if item.name in whole else "a number " + (">= 0" if least == 0 else "> 0")
                raise RewardError(f"{item.name} of the reward server must be {kind}. Got {value!r}.")
        if self.max_held_mb < self.max_body_mb + self.max_media_mb:
            raise RewardError(
                "max_held_mb of the reward server must hold at least one request: max_body_mb + max_media_mb. "
                f"Got {self.max_held_mb:g} < {self.max_body_mb:g} + {self.max_media_mb:g}. Raise it or lower them."
            )


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
    answer = {"raw": raw, "ok": ok, "errors": errors, "parts": parts, "version": version}
    return json.dumps(answer, allow_nan=False).encode()


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
    try:
        answer = json.loads(body)
        raw, ok, errors, parts = answer["raw"], answer["ok"], answer["errors"], answer["parts"]
        lengths = {len(raw), len(ok), len(errors), *(len(values) for values in parts.values())}
        right = all(
            type(good) is bool and good == (score is not None and math.isfinite(score))
            for good, score in zip(ok, raw, strict=True)
        )
        if lengths != {count} or not right or not isinstance(answer["version"], str):
            raise ValueError(f"scores of {count} samples were expected")
        tensors = {name: _tensor(values) for name, values in parts.items()}
        told = [None if good else str(error or "not scored") for good, error in zip(ok, errors, strict=True)]
        return RewardOutput(_tensor(raw), torch.tensor(ok, dtype=torch.bool), told, tensors), answer["version"]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no scores in it ({error!r})") from error


def _tensor(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float32)


def encode_spec(spec: ScorerSpec) -> dict[str, Any]:
    """A spec as JSON; a range without a bound has null there."""
    return {**asdict(spec), "range": [bound if math.isfinite(bound) else None for bound in spec.range]}


def decode_spec(told: Mapping[str, Any]) -> ScorerSpec:
    """The spec that a server tells; fields of a newer server that are unknown here are left out.

    Raises:
        ValueError: it is none.
    """
    try:
        known = {item.name: told[item.name] for item in fields(ScorerSpec) if item.name in told}
        low, high = known["range"]
        known["range"] = (-math.inf if low is None else float(low), math.inf if high is None else float(high))
        for name in ("media", "requires", "scaling"):
            known[name] = tuple(known[name])
        return ScorerSpec(**known)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no description of a reward ({error!r})") from error


def decode_listing(body: bytes) -> tuple[Mapping[str, Any], Limits]:
    """Specs by name, still as JSON, and the limits of a server, in its answer to GET /v1/rewards.

    Raises:
        ValueError: it is no such answer.
    """
    try:
        told = json.loads(body)
        limits = {item.name: told["limits"][item.name] for item in fields(Limits) if item.name in told["limits"]}
        if not isinstance(told["rewards"], dict):
            raise ValueError("no rewards in it")
        return told["rewards"], Limits(**limits)
    except (KeyError, TypeError, RecursionError, RewardError) as error:
        raise ValueError(f"no list of rewards ({error!r})") from error
