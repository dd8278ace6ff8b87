"""Prompts to pictures, from a pipeline as it is or from a run's aligned weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from diffrl import pulse
from diffrl.data.prompts import PromptList, make_prompt, read_prompts
from diffrl.data.sources import require_source
from diffrl.errors import ConfigError
from diffrl.export.pictures import SAMPLES, OpenModel, open_model, require_run_or_model, write_sample
from diffrl.export.request import GenerateRequest
from diffrl.files import require_empty
from diffrl.models.encodings import PromptEncodings
from diffrl.models.families import find_family
from diffrl.models.images import STILL_SIZE, Cell, comparison_grid, still
from diffrl.models.loading import choose_device
from diffrl.records import Prompt
from diffrl.rollout.address import Address
from diffrl.rollout.denoise import Sampler, denoise
from diffrl.rollout.regenerate import decode
from diffrl.rollout.tree import chains
from diffrl.training.prompt_report import PromptReport, count_cut
from diffrl.training.scorers import require_sources
from diffrl.training.session import encoders_of

DEFAULT_STEPS = 28
GRID_PROMPTS, GRID_PICTURES, GRID_SIZE = 24, 4, 128


def generate_pictures(request: GenerateRequest, out: Path) -> list[str]:
    """Write `<prompt>-<number>.png`, samples.jsonl and grid.png into a new or empty folder; returns lines for the user.

    The noise of a picture depends on the seed, its prompt's place in the list and its number alone, so two calls that
    differ in the weights only can be compared picture by picture.

    Raises:
        ConfigError: the request does not add up, or what it names cannot be loaded.
    """
    prompts, notes = _prompts(request)
    require_empty(out, "--out")
    drawing, report = open_drawing(request), PromptReport(notes)
    for where, texts in {"the prompts": prompts, **request.negative_prompts}.items():
        count_cut(report, "warn", where, texts, encoders_of(drawing.model.adapter))
    return [*report.notes, *_write(out, request, prompts, drawing)]


@dataclass(frozen=True)
class Drawing:
    """A model that is ready to sample, and how."""

    model: OpenModel  # the model
    sampler: Sampler  # how latents are carried
    lines: Sequence[str]  # what the user should know of it


def open_drawing(request: GenerateRequest) -> Drawing:
    """Load what a request samples with.

    Raises:
        ConfigError: the request does not add up, or what it names cannot be loaded.
    """
    require_run_or_model("generate", request)
    lines: list[str] = []
    model = open_model(request, choose_device(request.device), lines.append)
    steps, guidance, solver = DEFAULT_STEPS, 1.0, "ode"
    if model.run is not None:
        model.run.align()
        lines.append(f"Weights of {request.run} after iteration {model.run.checkpoint.step}.")
        evaluation = model.run.config.eval
        steps, guidance, solver = evaluation.steps, evaluation.guidance_scale, evaluation.solver
    sampler = Sampler(
        model.adapter.sigmas(request.steps or steps),
        solver=solver,
        guidance_scale=guidance if request.guidance_scale is None else request.guidance_scale,
        micro_batch=request.batch,
    )
    return Drawing(model, sampler, lines)


def draw(request: GenerateRequest, prompts: Sequence[Prompt], drawing: Drawing) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the samples that a request asks for, a batch of them at a time.

    Yields:
        The prompt's place in the list, the picture's number, and the picture (3, H, W) or video (F, 3, H, W) uint8.
    """
    adapter = drawing.model.adapter
    require_sources(drawing.model.family, adapter, {"The prompts": prompts})
    encode = PromptEncodings(adapter)
    jobs = [(i, j) for i in range(len(prompts)) for j in range(request.per_prompt)]
    for start in range(0, len(jobs), request.batch):
        piece = jobs[start : start + request.batch]
        used = sorted({i for i, _ in piece})
        latents = denoise(
            adapter,
            encode([prompts[i] for i in used]),
            chains(torch.tensor([used.index(i) for i, _ in piece])),
            [Address("generate", request.seed, 0, i, j) for i, j in piece],
            drawing.sampler,
        )
        pictures = decode(adapter, latents, request.batch, [prompts[i].text for i, _ in piece])
        yield from ((i, j, image) for (i, j), image in zip(piece, pictures, strict=True))


def _write(out: Path, request: GenerateRequest, prompts: Sequence[Prompt], drawing: Drawing) -> list[str]:
    """Sample into a folder; returns lines for the user."""
    fps, sampler = find_family(drawing.model.family).fps, drawing.sampler
    out.mkdir(parents=True, exist_ok=True)
    shown = min(request.per_prompt, GRID_PICTURES)
    first: dict[int, list[Tensor]] = {}
    count, wanted = 0, len(prompts) * request.per_prompt
    steps = len(sampler.sigmas) - 1
    pulse.begin(f"generating into {out}", {pulse.NETWORK: wanted * steps, pulse.DECODED: wanted})
    with (out / SAMPLES).open("w", encoding="utf-8") as index:
        for i, j, image in draw(request, prompts, drawing):
            write_sample(out, index, image, prompts[i], i, j, request.seed, fps)
            count += 1
            if j < shown and i < GRID_PROMPTS:
                first.setdefault(i, []).append(still(image))
    cells = [Cell(prompts[i].text, pictures) for i, pictures in first.items()]
    size = GRID_SIZE if fps is None else STILL_SIZE
    grid = comparison_grid(cells, labels=[""] * shown, columns=max(1, 6 // shown), picture_size=size)
    grid.save(out / "grid.png")
    what = ("image" if fps is None else "video") + ("" if count == 1 else "s")
    settings = f"{steps} steps, guidance {sampler.guidance_scale:g}."
    return [*drawing.lines, settings, f"{count} {what} in {out}, side by side in {out / 'grid.png'}"]


def kept_pictures(out: Path) -> str:
    """Say what an interrupted command leaves in its folder."""
    try:
        count = len((out / SAMPLES).read_text(encoding="utf-8").splitlines())
    except OSError:
        return "No sample was made yet."
    return f"{count} samples are in {out}, listed in {SAMPLES}. Generate into another folder to have all."


def asked_prompts(texts: Sequence[str], image: str | None, name: str) -> list[Prompt]:
    """Make prompts that a command or a call names one by one, and the image that all of them edit.

    Args:
        texts: of the prompts.
        image: path of an image; None for prompts that edit none.
        name: of the option, for messages.

    Raises:
        ConfigError: a text cannot be a prompt, there is an image and no text, or it is none.
    """
    if image is None:
        return [make_prompt(text, "--prompt") for text in texts]
    if not texts:
        raise ConfigError(f"{name} goes with prompts that are given one by one. Got none. A .jsonl list names its own.")
    path = os.path.abspath(image)
    require_source(path, name)
    return [make_prompt(text, "--prompt", None, path) for text in texts]


def _prompts(request: GenerateRequest) -> PromptList:
    listed, notes = read_prompts(request.prompts) if request.prompts else PromptList([], [])
    prompts = asked_prompts([text for text in request.prompt or () if text.strip()], request.image, "--image") + listed
    if not prompts:
        raise ConfigError("At least one prompt is needed. Give --prompt TEXT or --prompts SOURCE.")
    return PromptList(prompts[: request.limit], notes)
