"""The command line. Nothing heavy is imported until a command runs, so `--help` answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffrl import __version__
from diffrl.draw import DrawOptions, draw_pictures, folder_to_draw_into
from diffrl.export.request import EvaluateRequest
from reward_models.cli import ScoreCommand, add_commands, quiet_libraries, score_files
from reward_models.options import Paths, ResultOptions, Reward, RewardOptions, SampleOptions, grouped

if TYPE_CHECKING:
    from diffrl.config import Config

app = typer.Typer(
    name="diffrl",
    help="Align flow-matching image and video generators with online reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigArgument = Annotated[Path, typer.Argument(help="A YAML configuration, such as configs/quickstart.yaml.")]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[A.B=C]...", help="Values that replace those of the file.")
]


StepOption = Annotated[
    int | None, typer.Option(min=1, help="The run's checkpoint of this iteration. Default: the newest.")
]
BestOption = Annotated[
    bool, typer.Option("--best", help="The run's checkpoint with the best first held-out reward, of those evaluated.")
]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"diffrl {__version__}")
        raise typer.Exit


@app.callback()
def diffrl(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Align flow-matching image and video generators with online reinforcement learning."""


@app.command()
def train(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            help="A YAML configuration, such as configs/quickstart.yaml. Left out with --resume.",
        ),
    ] = None,
    overrides: OverridesArgument = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with this run's directory instead; beyond its end with run.iterations=N."),
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="With --resume: begin anew. What the run holds is set aside, not lost.")
    ] = False,
    init_from: Annotated[
        Path | None, typer.Option(help="Begin a new run with another run's trained weights: of its newest checkpoint.")
    ] = None,
    step: Annotated[int | None, typer.Option(min=1, help="With --init-from: its checkpoint of this iteration.")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="With --init-from: its checkpoint with the best first held-out reward.")
    ] = False,
) -> None:
    """Align a model, or go on with a run: one that was interrupted, or beyond its end.

    diffrl train --resume runs/first run.iterations=320
    """
    from diffrl.errors import ConfigError

    if resume is not None and config is not None and "=" in config:
        config, overrides = None, [config, *(overrides or [])]
    if (config is None) == (resume is None):
        raise ConfigError("diffrl train takes a configuration or --resume RUN_DIR, and not both.")
    if from_start and resume is None:
        raise ConfigError(
            "--from-start belongs to --resume RUN_DIR. Leave it out: a new run begins at the start anyway."
        )
    if resume is not None and init_from is not None:
        raise ConfigError(
            f"--init-from begins a new run, and --resume goes on with one. Got both. Start a new one: diffrl train "
            f"{resume / 'config.yaml'} run.name=NEW --init-from {init_from}"
        )
    _quiet_libraries()
    if resume is not None:
        from diffrl.run.lifecycle import resume as go_on

        _choice(step, best, init_from, "--init-from")
        go_on(resume, _console(), from_start, overrides or [])
    elif config is not None:
        resolved, choice = _load(Path(config), overrides), _choice(step, best, init_from, "--init-from")
        from diffrl.run.lifecycle import train as start

        if init_from is not None:
            from diffrl.run.initial import begin_with

            resolved = begin_with(resolved, init_from, choice, typer.echo)
        start(resolved, _console())


@app.command()
def check(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    processes: Annotated[int, typer.Option(min=1, max=100_000, help="Ranks that will share the work.")] = 1,
) -> None:
    """Check a configuration and everything it names, without loading the model."""
    resolved = _load(config, overrides)
    _quiet_libraries()
    from diffrl.run.check import check_config

    for line in check_config(resolved, processes):
        typer.echo(line)


@app.command()
def plan(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    processes: Annotated[int, typer.Option(min=1, max=100_000, help="Ranks that will share the work.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a run will cost: batches, network evaluations, decodes, reward calls, memory."""
    _quiet_libraries()
    from diffrl.cost.plan import make_plan, plan_json, plan_text

    made = make_plan(_load(config, overrides), processes)
    typer.echo(plan_json(made) if as_json else plan_text(made))


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="Folder for the pictures; it must be new or empty.")],
    model: Annotated[str | None, typer.Option(help="A pipeline's directory or hub id.")] = None,
    run: Annotated[Path | None, typer.Option(help="A run, whose aligned weights are used.")] = None,
    step: StepOption = None,
    best: BestOption = False,
    family: Annotated[
        str | None, typer.Option(help="Model family of --model. Default: what its pipeline class says.")
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt; may be given several times.")] = None,
    prompts: Annotated[str | None, typer.Option(help="shapes:tune, a .txt or .jsonl file, or hub:<dataset>.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Take only the first prompts.")] = None,
    per_prompt: Annotated[int, typer.Option(min=1, max=100_000, help="Pictures of each prompt.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the noise.")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Denoising steps. Default: the run's, else 28.")
    ] = None,
    guidance_scale: Annotated[
        float | None, typer.Option(min=1.0, max=1000.0, help="1 is off. Default: the run's, else 1.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Of --model: float32 or bfloat16.")] = "float32",
    height: Annotated[int | None, typer.Option(min=1, max=16383, help="In pixels, with --model.")] = None,
    width: Annotated[int | None, typer.Option(min=1, max=16383, help="In pixels, with --model.")] = None,
    frames: Annotated[int | None, typer.Option(min=1, max=4096, help="Of a video, with --model.")] = None,
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Pictures at once; bounds memory.")] = 64,
) -> None:
    """Draw pictures or videos from a pipeline, or from a run's aligned weights."""
    _quiet_libraries()
    from diffrl.export.generate import GenerateRequest, generate_pictures

    request = GenerateRequest(
        out=out,
        model=model,
        run=run,
        choice=_choice(step, best, run),
        family=family,
        prompts=tuple(prompt or ()),
        source=prompts,
        limit=limit,
        per_prompt=per_prompt,
        seed=seed,
        steps=steps,
        guidance_scale=guidance_scale,
        device=device,
        dtype=dtype,
        height=height,
        width=width,
        frames=frames,
        batch=batch,
    )
    for line in generate_pictures(request):
        typer.echo(line)


@app.command()
@grouped
def evaluate(*, request: EvaluateRequest) -> None:
    """Measure a run's weights, or a pipeline, on held-out prompts: a table of means with their intervals.

    diffrl evaluate --run runs/first --base --guidance 1 --guidance 3 --prompts shapes:report

    Rows about a run are written down in it, in evaluations.jsonl.
    """
    _quiet_libraries()
    from diffrl.export.evaluate import show_evaluation

    show_evaluation(request, _console())


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
    step: StepOption = None,
    best: BestOption = False,
) -> None:
    """Write a run's weights in diffusers format, or quantised, with a model card."""
    _quiet_libraries()
    if form == "diffusers":
        from diffrl.export.diffusers import export_run

        lines = export_run(run, out, _choice(step, best, run))
    else:
        from diffrl.export.modelopt import export_quantised

        lines = export_quantised(run, out, form, choice=_choice(step, best, run))
    for line in lines:
        typer.echo(line)


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
    resolved = _load(config, overrides)
    _quiet_libraries()
    from diffrl.studies.fidelity.command import show_fidelity
    from diffrl.studies.fidelity.request import FidelityRequest

    request = FidelityRequest(
        out=out,
        run=run,
        choice=_choice(step, best, run),
        precisions=tuple(precision or ()),
        steps=tuple(steps or ()),
        prompts=prompts,
        candidates=candidates,
        k=k,
        seed=seed,
        held_out=held_out,
    )
    show_fidelity(resolved, request, _console(), as_json)


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
        typer.Option(min=2, max=1000, help="Draw 48 report prompts so often each: diversity, distance to the base."),
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
) -> None:
    """Compare configurations at equal budget over several seeds: table, curves, paired differences, cost to a score.

    Runs of one seed share prompts, their order and noise, or are refused. Curves
    are of the split tune, final numbers of the split report, as by diffrl
    evaluate. What the seeds are too few for is printed as not resolved.
    """
    from diffrl.errors import ConfigError

    if report_only and (configs or budget or dry_run or seeds or guidance or jobs or variety):
        raise ConfigError(
            "--report-only takes --out, --metric, --target, --detect, --sd and --prices, and nothing to train. Remove "
            "the rest."
        )
    from diffrl.cost.prices import EQUAL
    from diffrl.studies.compare import CompareRequest, show_report
    from diffrl.studies.compare import compare as start

    if report_only:
        show_report(out, _console(), metric, target, detect, sd, prices)
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
    )
    start(request, _console(), dry_run)


@app.command()
def gallery(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...", help="Runs, folders of runs, or folders of pictures. Default: everything in runs/."
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
        typer.Option(help="Score folders of pictures with this, as in diffrl score; may be given several times."),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page once it is there.")] = True,
) -> None:
    """Compare samples before and after, look into trees, draw curves, vote blindly: a web page on this machine."""
    from diffrl.gallery.command import GalleryRequest, show_gallery

    request = GalleryRequest(tuple(paths or ()), export_to, host, port, votes, tuple(reward or ()), browser)
    show_gallery(request, typer.echo)


@app.command(cls=ScoreCommand)
@grouped
def score(
    *,
    paths: Paths = None,
    reward: Reward = None,
    options: RewardOptions,
    samples: SampleOptions,
    results: ResultOptions,
    drawing: DrawOptions,
) -> None:
    """Score pictures and videos with one or several rewards: table, rows, histograms, correlations.

    diffrl score pictures/ --prompts prompts.txt --reward pickscore --reward aesthetic --out scores.jsonl

    Exit code: 0; 2 for a mistake in what was asked; 3 if every reward failed for every file, or with --strict any.
    """
    _quiet_libraries()
    if drawing.pipeline is None and drawing.images is None:
        score_files(paths or (), reward or (), options, samples, results)
    folder = folder_to_draw_into(drawing, paths or ())
    beside = replace(samples, prompt=None, prompts=None, limit=None)  # what is drawn has its prompts beside it

    def draw() -> list[str]:
        return draw_pictures(drawing, samples, options.device or "auto")

    score_files([str(folder)], reward or (), options, beside, results, draw)


add_commands(app)


def _load(config: Path, overrides: Sequence[str] | None) -> Config:
    from diffrl.config import load_config

    return load_config(config, overrides or [])


def _choice(step: int | None, best: bool, run: Path | None, option: str = "--run") -> Any:
    """The checkpoint that --step and --best ask for."""
    from diffrl.run.choose import Choice, require_choice

    choice = Choice(step, best)
    require_choice(choice, run, option)
    return choice


def _console() -> Any:
    from rich.console import Console

    return Console()


def _quiet_libraries() -> None:
    """Keep other libraries' progress bars and advice out of ours; errors still come through."""
    import warnings

    warnings.filterwarnings("ignore", message=".*local_dir_use_symlinks.*")
    # Advice to developers at every start, and the hub's retries: what came of them is said in one sentence.
    quiet_libraries("bitsandbytes.backends.cpu.ops", "bitsandbytes.autograd._functions")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake of the user's ends in one message and exit code 2, without a traceback."""
    from diffrl.exits import errors_as_messages

    sys.path.append(os.getcwd())  # for rewards and families of the user's own, "module:Object"
    with errors_as_messages():
        app(args=list(sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()
