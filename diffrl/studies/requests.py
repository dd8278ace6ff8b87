"""What `diffrl fidelity` and `diffrl compare` are asked for: their options, without anything heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True)
class FidelityRequest:
    """What to compare with the training precision. None leaves the choice to the configuration."""

    out: Annotated[Path, typer.Option(help="Folder for fidelity.json, .md and .png; it must be new or empty.")]
    run: Annotated[Path | None, typer.Option(help="A run, whose aligned weights are used.")] = None
    step: Annotated[
        int | None, typer.Option(min=1, help="The run's checkpoint of this iteration. Default: the newest healthy one.")
    ] = None
    best: Annotated[
        bool,
        typer.Option("--best", help="The run's checkpoint with the best first held-out reward, of those evaluated."),
    ] = False
    newest: Annotated[bool, typer.Option("--newest", help="The run's newest checkpoint, healthy or not.")] = False
    precision: Annotated[
        list[str] | None,
        typer.Option(
            help="training, bfloat16, int8, fp8, mxfp8 or nvfp4, or with its engine nvfp4:emulated; may be given "
            "several times. Default: the configuration's, else bfloat16."
        ),
    ] = None
    steps: Annotated[
        list[int] | None,
        typer.Option(help="Denoising steps; may be given several times. Default: the configuration's, and all."),
    ] = None
    prompts: Annotated[
        int, typer.Option(min=1, max=100_000, help="The first prompts that training with this seed takes.")
    ] = 8
    candidates: Annotated[
        int | None, typer.Option(min=2, max=100_000, help="Of each prompt. Default: the configuration's, else 32.")
    ] = None
    k: Annotated[int, typer.Option(min=1, max=100_000, help="How many are the best, and the worst.")] = 8
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="Of prompts and noise. Default: run.seed.")] = (
        None
    )
    held_out: Annotated[bool, typer.Option("--held-out", help="Held-out prompts in place of training prompts.")] = False


@dataclass(frozen=True)
class CompareRequest:
    """What to compare, at which budget, over how many seeds."""

    out: Annotated[Path, typer.Option(help="Folder of the comparison: a new one, or one to go on with.")]
    configs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG]...",
            help='Configurations, each in quotes: "path", "path a.b=c ..." or "label: path a.b=c ...".',
        ),
    ] = None
    budget: Annotated[
        str | None, typer.Option(help="What each run may spend on training: evaluations=NUMBER or seconds=NUMBER.")
    ] = None
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Runs of each configuration, from run.seed upwards. Default: 3, or --detect."
        ),
    ] = None
    detect: Annotated[
        float | None,
        typer.Option(help="Difference of the metric that is to be resolved (power 0.8): chooses the number of seeds."),
    ] = None
    sd: Annotated[
        float | None, typer.Option(help="Of paired differences, for --detect. Default: the one measured in --out.")
    ] = None
    guidance: Annotated[
        list[float] | None,
        typer.Option(min=1.0, max=1000.0, help="Measure the report split with this guidance too. Several."),
    ] = None
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Runs at once. Default: one a core; one on a GPU or for seconds."),
    ] = None
    own_noise: Annotated[
        bool,
        typer.Option(
            "--own-noise", help="Evaluate each seed on noise of its own (eval.seed counts up): intervals hold it too."
        ),
    ] = False
    no_report: Annotated[
        bool,
        typer.Option("--no-report", help="Leave the split report alone, for a search of settings; later runs add it."),
    ] = False
    variety: Annotated[
        int | None,
        typer.Option(min=2, max=1000, help="Sample 48 report prompts so often each: diversity, distance to the base."),
    ] = None
    prices: Annotated[
        str | None,
        typer.Option(
            help="Of evaluations: equal (default), cpu-measured, h100-bf16-fp8, b200-nvfp4; TABLE,nvfp4=0.25."
        ),
    ] = None
    evals: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Held-out evaluations of a run, besides the one before it.")
    ] = 8
    metric: Annotated[str | None, typer.Option(help="Held-out reward. Default: the first configuration's first.")] = (
        None
    )
    target: Annotated[float, typer.Option(help="Score whose cost is reported.")] = 0.6
    accept_changed_inputs: Annotated[
        bool,
        typer.Option(
            "--accept-changed-inputs",
            help="Go on although prompts, base or rewards have other contents than those trained with.",
        ),
    ] = False
