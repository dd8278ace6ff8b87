"""Commands about a run: what it will do and cost, and the run itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from diffrl.cli.shared import (
    AcceptOption,
    ConfigArgument,
    OverridesArgument,
    ProcessesOption,
    app,
    choice,
    console,
    load,
    quiet,
)


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
        Path | None,
        typer.Option(help="Begin a new run with another run's trained weights: its newest healthy checkpoint."),
    ] = None,
    step: Annotated[int | None, typer.Option(min=1, help="With --init-from: its checkpoint of this iteration.")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="With --init-from: its checkpoint with the best first held-out reward.")
    ] = False,
    newest: Annotated[
        bool, typer.Option("--newest", help="With --init-from: its newest checkpoint, healthy or not.")
    ] = False,
    accept_changed_inputs: AcceptOption = False,
) -> None:
    """Align a model, or go on with a run: one that was interrupted, or beyond its end.

    diffrl train --resume runs/first run.iterations=320
    """
    from diffrl.errors import ConfigError

    if resume is not None and config is not None and "=" in config:
        config, overrides = None, [config, *(overrides or [])]
    if (config is None) == (resume is None):
        got = "neither. Add one: diffrl init writes a configuration" if config is None else "both. Remove one"
        raise ConfigError(f"diffrl train takes a configuration or --resume RUN_DIR, and not both. Got {got}.")
    if config is not None and Path(config, "config.yaml").is_file():
        raise ConfigError(
            f"diffrl train takes a configuration. Got {config}, which is a run. To go on with it: diffrl train "
            f"--resume {config}; to begin anew with its settings: diffrl train {config}/config.yaml run.name=NEW"
        )
    if from_start and resume is None:
        raise ConfigError(
            "--from-start belongs to --resume RUN_DIR. Leave it out: a new run begins at the start anyway."
        )
    if resume is not None and init_from is not None:
        raise ConfigError(
            f"--init-from begins a new run, and --resume goes on with one. Got both. Start a new one: diffrl train "
            f"{resume / 'config.yaml'} run.name=NEW --init-from {init_from}"
        )
    quiet()
    if resume is not None:
        from diffrl.lifecycle import resume as go_on

        choice(step, best, newest, init_from, "--init-from")
        go_on(resume, console(), from_start, overrides or [], accept_changed_inputs=accept_changed_inputs)
    elif config is not None:
        resolved, begun = load(Path(config), overrides), choice(step, best, newest, init_from, "--init-from")
        from diffrl.lifecycle import train as start

        if init_from is not None:
            from diffrl.run.start_weights import begin_with

            resolved = begin_with(resolved, init_from, begun, typer.echo)
        start(resolved, console(), accept_changed_inputs=accept_changed_inputs)


@app.command()
def status(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")]) -> None:
    """Tell in a line how a run stands, by what lies in its directory.

    diffrl status runs/first && diffrl export runs/first --out exported

    Exit code: 0 finished; 2 no run there; 3 failed, or stopped by a guard; 4 running; 5 interrupted or crashed.
    """
    quiet()
    from diffrl.run.status import status_of

    standing = status_of(run)
    typer.echo(standing.line)
    raise typer.Exit(standing.exit_code)


@app.command()
def explore(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8124,
    token_file: Annotated[Path | None, typer.Option(help="A file with the token that runs must show.")] = None,
    allow_anonymous: Annotated[bool, typer.Option("--allow-anonymous", help="No token on an open address.")] = False,
) -> None:
    """Draw samples for a run elsewhere, which names this process in rollout.explorers.servers, until it is stopped.

    diffrl explore configs/flux/diffrl.yaml --host 0.0.0.0 --token-file token.txt

    Without a token file the token is that of DIFFRL_EXPLORER_TOKEN.
    """
    resolved = load(config, overrides)
    quiet()
    from diffrl.config.explore import EXPLORER_TOKEN
    from diffrl.explorer import Explorer, make_explorer_app
    from reward_models.serving.server import serve_app

    def ready(address: str) -> None:
        console().print(
            f"Drawing for runs at {address}; stop with Ctrl-C.", markup=False, highlight=False, soft_wrap=True
        )

    serve_app(
        lambda token: make_explorer_app(Explorer(resolved, token)),
        ready,
        host=host,
        port=port,
        token_file=token_file,
        allow_anonymous=allow_anonymous,
        variable=resolved.rollout.explorers.token_env if resolved.rollout.explorers else EXPLORER_TOKEN,
    )


@app.command()
def check(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    processes: ProcessesOption = 1,
    gpu: Annotated[str | None, typer.Option(help="Judge for a machine with this GPU, such as h100.")] = None,
    memory: Annotated[str | None, typer.Option(help="Judge for a GPU of so much memory, such as 80GB.")] = None,
    ask_rewards: Annotated[
        bool, typer.Option(help="Score an image of noise with every reward; a judge on a server may bill that.")
    ] = True,
) -> None:
    """Check a configuration and everything it names, without loading the model.

    diffrl check configs/flux/flow_grpo.yaml --processes 8 --gpu h100

    Exit code: 2 for a configuration that is wrong; 0 for one that is right, also where this machine cannot run it.
    """
    resolved = load(config, overrides)
    quiet()
    from diffrl.preflight.check import check_config
    from diffrl.preflight.machine import target_machine

    for line in check_config(resolved, processes, target_machine(gpu, memory), ask_rewards):
        typer.echo(line)


def _fit(config: Path, overrides: Sequence[str], processes: int, gpu: str) -> Iterator[str]:
    """Yield which keys make a run fit a GPU."""
    from diffrl.cost.fit import find_fit, fit_lines, override_words
    from diffrl.cost.gpus import find_gpu

    card = find_gpu(gpu)
    fit = find_fit(
        load(config, overrides), lambda keys: load(config, [*overrides, *override_words(keys)]), card, processes
    )
    command = shlex.join(["diffrl", "train", str(config), *overrides, *override_words(fit.overrides)])
    yield from fit_lines(fit, card, command)


@app.command()
def plan(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    processes: ProcessesOption = 1,
    gpu: Annotated[
        list[str] | None, typer.Option(help="Hours on this GPU, such as h100; may be given several times.")
    ] = None,
    utilisation: Annotated[
        float | None, typer.Option(min=0.01, max=1.0, help="Share of the GPU's peak that is reached. Default: 0.4.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0.0, max=1.0e6, help="Of a --gpu for an hour: what the hours cost.")
    ] = None,
    fit: Annotated[
        str | None, typer.Option(help="Only say which keys make it fit this GPU, such as rtx4090.", metavar="GPU")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a run will cost: batches, network evaluations, operations, decodes, reward calls, memory, hours.

    diffrl plan configs/sd3/flow_grpo.yaml --processes 8 --gpu h100 --price 2.5

    diffrl plan configs/flux/diffrl.yaml --fit rtx4090
    """
    quiet()
    from diffrl.errors import ConfigError

    if fit is not None:
        if gpu or utilisation or price is not None or as_json:
            raise ConfigError(
                "--fit must stand without --gpu, --utilisation, --price and --json, which show a plan. Remove them."
            )
        for line in _fit(config, overrides or [], processes, fit):
            typer.echo(line)
        return
    if price is not None and not gpu:
        raise ConfigError(f"--price needs a --gpu, whose hours it is of. Got --price {price:g} alone. Add --gpu h100.")
    from diffrl.cost.gpus import find_gpu
    from diffrl.cost.hours import UTILISATION, cost_of, hours_notes, hours_of, hours_rows
    from diffrl.cost.plan import plan_json, plan_text
    from diffrl.precision.choice import speed_notes
    from diffrl.preflight.downloads import describe_downloads, downloads
    from diffrl.preflight.preview import Preview
    from diffrl.preflight.prompts import plan_notes

    resolved = load(config, overrides)
    preview = Preview(resolved, processes)
    made, gpus = preview.plan, tuple(find_gpu(name) for name in gpu or ())
    share = utilisation or UTILISATION
    fetched = downloads(resolved)
    if as_json:
        hours = {one.title: hours_of(made, one, share) for one in gpus}
        prompt_lines = plan_notes(preview)
        more = {"utilisation": share, "hours": hours} if gpus else {}
        if price is not None:
            costs = {gpu: None if one is None else cost_of(made, one, price) for gpu, one in hours.items()}
            more |= {"price": price, "costs": costs}
        typer.echo(plan_json(made, {"downloads": [asdict(one) for one in fetched], **more, "prompts": prompt_lines}))
        return
    rows, notes = tuple(hours_rows(made, gpus, share, price)), tuple(hours_notes(made, resolved, gpus))
    copy = resolved.rollout.policy_copy
    device = "cuda" if gpus else resolved.model.device
    notes += speed_notes(resolved.model.dtype, None if copy is None else copy.precision, device)
    first = ["To fetch first:", *(f"  {line}" for line in describe_downloads(fetched))] if fetched else []
    typer.echo(plan_text(made, rows, (*notes, *plan_notes(preview), *first)))
