"""Commands that measure over several runs, or several precisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffrl.cli.shared import (
    AcceptOption,
    BestOption,
    ConfigArgument,
    OverridesArgument,
    StepOption,
    app,
    choice,
    console,
    load,
    quiet,
)


@app.command()
def fidelity(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option(help="Folder for fidelity.json, .md and .png; it must be new or empty.")],
    overrides: OverridesArgument = None,
    run: Annotated[Path | None, typer.Option(help="A run, whose aligned weights are used.")] = None,
    step: StepOption = None,
    best: BestOption = False,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            help="training, bfloat16, int8, fp8, mxfp8 or nvfp4, or with its engine nvfp4:emulated; may be given "
            "several times. Default: the configuration's, else bfloat16."
        ),
    ] = None,
    steps: Annotated[
        list[int] | None,
        typer.Option(help="Denoising steps; may be given several times. Default: the configuration's, and all."),
    ] = None,
    prompts: Annotated[
        int, typer.Option(min=1, max=100_000, help="The first prompts that training with this seed takes.")
    ] = 8,
    candidates: Annotated[
        int | None, typer.Option(min=2, max=100_000, help="Of each prompt. Default: the configuration's, else 32.")
    ] = None,
    k: Annotated[int, typer.Option(min=1, max=100_000, help="How many are the best, and the worst.")] = 8,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Of prompts and noise. Default: run.seed.")
    ] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Held-out prompts in place of training prompts.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how well cheap pools rank candidates, against the training precision with all steps."""
    resolved = load(config, overrides)
    quiet()
    from diffrl.studies.fidelity.command import show_fidelity
    from diffrl.studies.fidelity.request import FidelityRequest

    request = FidelityRequest(
        out=out,
        run=run,
        choice=choice(step, best, run),
        precisions=tuple(precision or ()),
        steps=tuple(steps or ()),
        prompts=prompts,
        candidates=candidates,
        k=k,
        seed=seed,
        held_out=held_out,
    )
    show_fidelity(resolved, request, console(), as_json)


@app.command()
def compare(
    out: Annotated[Path, typer.Option(help="Folder of the comparison: a new one, or one to go on with.")],
    configs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG]...",
            help='Configurations, each in quotes: "path", "path a.b=c ..." or "label: path a.b=c ...".',
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="What each run may spend on training: evaluations=NUMBER or seconds=NUMBER.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Runs of each configuration, from run.seed upwards. Default: 3, or --detect."
        ),
    ] = None,
    detect: Annotated[
        float | None,
        typer.Option(help="Difference of the metric that is to be resolved (power 0.8): chooses the number of seeds."),
    ] = None,
    sd: Annotated[
        float | None,
        typer.Option(help="Of paired differences, for --detect. Default: the one measured in --out."),
    ] = None,
    guidance: Annotated[
        list[float] | None,
        typer.Option(min=1.0, max=1000.0, help="Measure the report split with this guidance too. Several."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Runs at once. Default: one a core; one on a GPU or for seconds."),
    ] = None,
    variety: Annotated[
        int | None,
        typer.Option(min=2, max=1000, help="Sample 48 report prompts so often each: diversity, distance to the base."),
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(
            help="Of evaluations: equal (default), cpu-measured, h100-bf16-fp8, b200-nvfp4; TABLE,nvfp4=0.25."
        ),
    ] = None,
    evals: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Held-out evaluations of a run, besides the one before it.")
    ] = 8,
    metric: Annotated[
        str | None, typer.Option(help="Held-out reward. Default: the first configuration's first.")
    ] = None,
    target: Annotated[float, typer.Option(help="Score whose cost is reported.")] = 0.6,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and train nothing.")] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="Only write table and figures again.")] = False,
    accept_changed_inputs: AcceptOption = False,
) -> None:
    """Compare configurations at equal budget over several seeds: table, curves, paired differences, cost to a score.

    Runs of one seed share prompts, their order and noise, or are refused. Curves
    are of the split tune, final numbers of the split report, as by diffrl
    evaluate. What the seeds are too few for is printed as not resolved.
    """
    from diffrl.errors import ConfigError

    training = {
        "configurations": configs,
        "--budget": budget,
        "--dry-run": dry_run,
        "--seeds": seeds,
        "--guidance": guidance,
        "--jobs": jobs,
        "--variety": variety,
    }
    if report_only and (beside := [name for name, value in training.items() if value]):
        raise ConfigError(
            "--report-only takes --out, --metric, --target, --detect, --sd and --prices, and nothing to train. Got "
            f"{', '.join(beside)} too. Remove that."
        )
    from diffrl.cost.prices import EQUAL
    from diffrl.studies.compare import CompareRequest, show_report
    from diffrl.studies.compare import compare as start

    if report_only:
        show_report(out, console(), metric, target, detect, sd, prices)
        return
    request = CompareRequest(
        tuple(configs or ()),
        out,
        budget,
        seeds,
        evals,
        metric,
        target,
        detect,
        sd,
        tuple(guidance or ()),
        jobs,
        prices or EQUAL.name,
        variety,
        accept_changed_inputs,
    )
    start(request, console(), dry_run)
