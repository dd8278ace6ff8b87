"""Commands about what a run has learned: images, measurements, weights, pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffrl.cli.shared import BestOption, NewestOption, StepOption, app, choice, console, quiet
from diffrl.errors import ConfigError
from diffrl.export.request import EvaluateRequest, GenerateRequest
from diffrl.gallery.request import GalleryRequest
from reward_models.common.options import grouped


@app.command()
@grouped
def generate(
    *,
    out: Annotated[Path, typer.Option(help="Folder for the images; it must be new or empty.")],
    request: GenerateRequest,
) -> None:
    """Generate images or videos with a pipeline, or from a run's aligned weights."""
    quiet()
    request.require_source()
    request.require_named(request.prompts)
    from diffrl.export.generate import generate_pictures, kept_pictures
    from diffrl.terminal.watch import watched

    with watched(console(), "loading", lambda: kept_pictures(out)):
        lines = generate_pictures(request, out)
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
    if request.run is not None:  # with --model other options may be missing, which is told first
        request.require_source()
    request.require_named(request.prompts, request.reward or (), request.option or ())
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
    push: Annotated[
        str | None, typer.Option(help="Repository of the Hugging Face Hub, OWNER/NAME, to upload the folder to.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="If --push makes the repository, for you alone.")] = False,
    step: StepOption = None,
    best: BestOption = False,
    newest: NewestOption = False,
) -> None:
    """Write a run's weights in diffusers format, or quantised, with a model card."""
    quiet()
    from diffrl.tracking.places import require_run_dir

    require_run_dir(run)
    from diffrl.export.hub import push as upload
    from diffrl.export.hub import require_repository
    from diffrl.terminal.watch import watched

    chosen = choice(step, best, newest, run)
    if (comfyui or peft) and form != "diffusers":
        option = "--comfyui" if comfyui else "--peft"
        raise ConfigError(f"{option} goes with --format diffusers. Got {form}, which merges the LoRA. Leave one out.")
    if private and push is None:
        raise ConfigError("--private goes with --push OWNER/NAME. Got --private alone. Add --push.")
    if push is not None:
        require_repository(push)
    with watched(console(), f"exporting {run}", lambda: f"What is in {out} is not whole: remove it and export again."):
        if form == "diffusers":
            from diffrl.export.diffusers import export_run

            lines = export_run(run, out, chosen, comfyui, peft)
        else:
            from diffrl.export.modelopt import export_quantised

            lines = export_quantised(run, out, form, choice=chosen)
    for line in lines:
        typer.echo(line)
    if push is not None:
        with watched(console(), f"uploading to {push}"):
            typer.echo(upload(out, push, private))


@app.command()
@grouped
def gallery(*, request: GalleryRequest) -> None:
    """Compare samples before and after, look into trees, draw curves, vote blindly: a web page on this machine."""
    from diffrl.gallery.command import show_gallery

    show_gallery(request, typer.echo)


@app.command()
@grouped
def vote(
    *,
    out: Annotated[Path, typer.Option(help="File for the pairs, one a vote; what is there is replaced.")] = Path(
        "preferences.jsonl"
    ),
    request: GalleryRequest,
) -> None:
    """Vote blindly between two images of a prompt; Ctrl-C ends it, and writes pairs that objective.kind: dpo reads."""
    from diffrl.gallery.command import take_votes

    take_votes(request, out, typer.echo)
