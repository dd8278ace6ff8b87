"""Commands about what a run has learned: images, measurements, weights, pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffrl.cli.shared import BestOption, StepOption, app, choice, console, quiet
from diffrl.errors import ConfigError
from diffrl.export.request import EvaluateRequest
from reward_models.common.options import grouped


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="Folder for the images; it must be new or empty.")],
    model: Annotated[str | None, typer.Option(help="A pipeline's directory or hub id.")] = None,
    run: Annotated[Path | None, typer.Option(help="A run, whose aligned weights are used.")] = None,
    step: StepOption = None,
    best: BestOption = False,
    family: Annotated[
        str | None, typer.Option(help="Model family of --model. Default: what its pipeline class says.")
    ] = None,
    lora: Annotated[
        str | None, typer.Option(help="With --model: a LoRA's file or folder, of diffrl or another trainer.")
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt; may be given several times.")] = None,
    image: Annotated[
        str | None, typer.Option(help="The image that every --prompt edits, with a family that edits.")
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(help="shapes:tune, a .txt or .jsonl file, a table, or hub:<dataset>.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Take only the first prompts.")] = None,
    per_prompt: Annotated[int, typer.Option(min=1, max=100_000, help="Images of each prompt.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the noise.")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Denoising steps. Default: the run's, else 28.")
    ] = None,
    guidance_scale: Annotated[
        float | None, typer.Option(min=1.0, max=1000.0, help="1 is off. Default: the run's, else 1.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Of --model: float32 or bfloat16.")] = "float32",
    variant: Annotated[
        str | None,
        typer.Option(help="Of --model's files of weights: fp16 reads *.fp16.safetensors where there are any."),
    ] = None,
    height: Annotated[int | None, typer.Option(min=1, max=16383, help="In pixels, with --model.")] = None,
    width: Annotated[int | None, typer.Option(min=1, max=16383, help="In pixels, with --model.")] = None,
    frames: Annotated[int | None, typer.Option(min=1, max=4096, help="Of a video, with --model.")] = None,
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Images at once; bounds memory.")] = 64,
) -> None:
    """Generate images or videos with a pipeline, or from a run's aligned weights."""
    quiet()
    from diffrl.export.generate import GenerateRequest, generate_pictures, kept_pictures
    from diffrl.terminal.watch import watched

    request = GenerateRequest(
        out=out,
        model=model,
        run=run,
        choice=choice(step, best, run),
        family=family,
        lora=lora,
        prompts=tuple(prompt or ()),
        source=prompts,
        image=image,
        limit=limit,
        per_prompt=per_prompt,
        seed=seed,
        steps=steps,
        guidance_scale=guidance_scale,
        device=device,
        dtype=dtype,
        variant=variant,
        height=height,
        width=width,
        frames=frames,
        batch=batch,
    )
    with watched(console(), "loading", lambda: kept_pictures(out)):
        lines = generate_pictures(request)
    for line in lines:
        typer.echo(line)


@app.command()
@grouped
def evaluate(*, request: EvaluateRequest) -> None:
    """Measure a run's weights, or a pipeline, on held-out prompts: a table of means with their intervals.

    diffrl evaluate --run runs/first --base --guidance 1 --guidance 3 --prompts shapes:report

    Rows about a run are written down in it, in evaluations.jsonl.

    Exit code: 0; 2 for a mistake in what was asked; 3 if no sample could be scored.
    """
    quiet()
    from diffrl.export.evaluate import show_evaluation

    show_evaluation(request, console())


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run's directory.")],
    out: Annotated[Path, typer.Option(help="Folder to write; it must be new or empty.")],
    form: Annotated[
        str,
        typer.Option(
            "--format", help="diffusers, or quantised for deployment, LoRA merged: modelopt-fp8, modelopt-nvfp4."
        ),
    ] = "diffusers",
    comfyui: Annotated[bool, typer.Option("--comfyui", help="A LoRA with ComfyUI's keys, too.")] = False,
    peft: Annotated[bool, typer.Option("--peft", help="A LoRA as peft writes it, too.")] = False,
    step: StepOption = None,
    best: BestOption = False,
) -> None:
    """Write a run's weights in diffusers format, or quantised, with a model card."""
    quiet()
    from diffrl.terminal.watch import watched

    chosen = choice(step, best, run)
    if (comfyui or peft) and form != "diffusers":
        option = "--comfyui" if comfyui else "--peft"
        raise ConfigError(f"{option} goes with --format diffusers. Got {form}, which merges the LoRA. Leave one out.")
    with watched(console(), f"exporting {run}", lambda: f"What is in {out} is not whole: remove it and export again."):
        if form == "diffusers":
            from diffrl.export.diffusers import export_run

            lines = export_run(run, out, chosen, comfyui, peft)
        else:
            from diffrl.export.modelopt import export_quantised

            lines = export_quantised(run, out, form, choice=chosen)
    for line in lines:
        typer.echo(line)


@app.command()
def gallery(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...", help="Runs, folders of runs, or folders of images. Default: everything in runs/."
        ),
    ] = None,
    export_to: Annotated[
        Path | None, typer.Option("--export", help="Write a static site here; it must be new or empty.")
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen. 127.0.0.1 is this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes any that is free.")] = 8181,
    votes: Annotated[Path, typer.Option(help="File that blind votes are added to.")] = Path("votes.jsonl"),
    reward: Annotated[
        list[str] | None,
        typer.Option(help="Score folders of images with this, as in diffrl score; may be given several times."),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page once it is there.")] = True,
) -> None:
    """Compare samples before and after, look into trees, draw curves, vote blindly: a web page on this machine."""
    from diffrl.gallery.command import GalleryRequest, show_gallery

    request = GalleryRequest(tuple(paths or ()), export_to, host, port, votes, tuple(reward or ()), browser)
    show_gallery(request, typer.echo)
