"""`diffrl evaluate`: how a run's weights, or a pipeline, score on prompts, measured as training measures it.

On a run's own held-out prompts and settings the means are those of metrics.jsonl. A split is `report` only where
`--prompts WORLD:report` says so, and every row about a run is written down in it, in evaluations.jsonl.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from torch import Tensor

from diffrl import pulse
from diffrl.config.rewards import RewardSettings
from diffrl.config.schema import EvalSettings
from diffrl.data.prompts import read_prompts
from diffrl.data.worlds import noise_stream
from diffrl.distributed.ranks import Ranks
from diffrl.errors import ConfigError, DiffrlError, GuardStop
from diffrl.export.measured import Measured, digest, measured, table_of
from diffrl.export.pictures import SAMPLES, OpenModel, open_model, require_run_or_model, write_sample
from diffrl.export.request import EvaluateRequest
from diffrl.export.variety import draw_several, variety
from diffrl.files import require_empty
from diffrl.models.encodings import PromptEncodings
from diffrl.models.families import find_family
from diffrl.models.loading import choose_device
from diffrl.records import Prompt
from diffrl.rewards.score import WeightedScorer
from diffrl.run.checkpoints import AlignedModel
from diffrl.run.inputs import warn_of_inputs
from diffrl.terminal.watch import watched
from diffrl.training.evaluate import Evaluation, evaluate
from diffrl.training.inputs import Inputs, digest_prompts, digest_rewards
from diffrl.training.prompt_report import PromptReport, count_cut
from diffrl.training.scorers import make_scorers, require_media, require_metadata, require_pairs, require_sources
from diffrl.training.session import encoders_of
from reward_models import RewardError
from reward_models.scoring.choices import choose

EVALUATIONS = "evaluations.jsonl"
SAMPLES_OF_A_PIPELINE, STEPS_OF_A_PIPELINE, BATCH_OF_A_PIPELINE = 500, 28, 64


@dataclass(frozen=True)
class _Setting:
    """All that the rows of a table have in common."""

    model: OpenModel  # the model; whose weights it has is up to the moment
    source: str  # of the prompts
    prompts: Sequence[Prompt]  # all of them; the first ones, as many as there are samples, are taken in turn
    scorers: Sequence[WeightedScorer]  # what is measured
    settings: EvalSettings  # of the sampling; its guidance is replaced by each row's
    guidances: Sequence[float]  # one row each
    decode_batch: int  # samples a decoder call
    notes: Sequence[str]  # of how the prompts were read, and what is not as it was in training


def show_evaluation(request: EvaluateRequest, console: Console) -> None:
    """Measure, write down what belongs to a run, and show one table.

    Raises:
        ConfigError: the request does not add up, or what it names cannot be had.
        DiffrlError: the run's evaluations.jsonl cannot be written.
        GuardStop: no sample of a row could be scored; that row is not written down.
    """

    def tell(line: str) -> None:  # beside the rows, which alone are the JSON
        print(line, file=sys.stderr) if request.as_json else console.print(line, highlight=False, markup=False)

    def kept() -> str:
        where = None if request.run is None else request.run / EVALUATIONS
        return "Nothing is kept." if where is None else f"Rows that were finished are in {where}."

    with watched(Console(stderr=True) if request.as_json else console, "loading", kept):
        rows = list(measure(request, tell))
    if request.as_json:
        print(json.dumps([row.as_json() for row in rows], indent=2))
        return
    console.print(table_of(rows))
    lines = [f"{row.label}: {row.failed} of {row.n + row.failed} could not be scored." for row in rows if row.failed]
    if (left := rows[0].prompts_left) > 0:
        lines.append(f"The last {left} of {left + rows[0].n + rows[0].failed} prompts were left out: raise --samples.")
    if request.run is not None:
        lines.append(f"Written down in {request.run / EVALUATIONS}.")
    for line in lines:
        console.print(line, highlight=False, markup=False)


def measure(request: EvaluateRequest, tell: Callable[[str], None] = print) -> Iterator[Measured]:
    """Yield each row of the table as soon as it is measured; one about a run is in its evaluations.jsonl by then.

    Args:
        request: what to measure.
        tell: is told which checkpoint of a run is measured and why, where it is not simply the newest; and what the
            user should know of a LoRA.

    Raises:
        ConfigError: as `show_evaluation`.
        GuardStop: no sample of a row could be scored.
    """
    require_run_or_model("evaluate", request)
    if request.base and request.run is None:
        raise ConfigError("--base goes with --run: a pipeline has no weights before alignment. Got --model. Remove it.")
    if request.option and not request.reward:
        raise ConfigError("--option is an option of a --reward. Got no --reward. Add one, or remove --option.")
    if request.out is not None:
        require_empty(request.out, "--out")
    setting = _open(request, tell)
    adapter, run = setting.model.adapter, setting.model.run
    prompts, report = setting.prompts[: setting.settings.samples], PromptReport([*setting.notes])
    for where, texts in {setting.source: prompts, **request.negative_prompts}.items():
        count_cut(report, "warn", where, texts, encoders_of(adapter))
    for line in report.notes:
        tell(line)
    _require_fit(setting, prompts)
    encode = PromptEncodings(adapter)(prompts)
    before = ["base"] if request.base else []
    stream = noise_stream(setting.source)

    def several(settings: EvalSettings, each: int) -> Tensor:
        return draw_several(adapter, encode, prompts, settings, setting.decode_batch, stream, each)

    guided = {scale: setting.settings.model_copy(update={"guidance_scale": scale}) for scale in setting.guidances}
    first: dict[float, Tensor] = {}
    if request.variety is not None and run is not None:  # before its weights are those after alignment
        first = {scale: several(settings, request.variety) for scale, settings in guided.items()}
    for weights in [*before, "model" if run is None else "aligned"]:
        if weights == "aligned" and run is not None:
            run.align()
        state = None if run is None else digest(run.policy.state())
        for guidance, settings in guided.items():
            of_rewards = settings.samples * len(setting.scorers)
            pulse.begin(
                f"{weights}, guidance {guidance:g}",
                {
                    pulse.NETWORK: settings.samples * settings.steps,
                    pulse.DECODED: settings.samples,
                    pulse.SCORED: of_rewards,
                },
            )
            evaluation = evaluate(
                Ranks(), adapter, encode, prompts, setting.scorers, settings, setting.decode_batch, stream
            )
            _require_scores(evaluation, tell)
            varied = None
            if request.variety is not None:
                images = first[guidance] if weights == "base" else several(settings, request.variety)
                varied = variety(images, first.get(guidance))
            aligned_at = run.checkpoint.step if run and weights == "aligned" else 0
            step = None if run is None else aligned_at
            row = measured(evaluation, settings, setting.source, len(setting.prompts), weights, step, state, varied)
            if request.out is not None:
                _keep(evaluation, request.out / row.label, setting)
            if request.run is not None:
                _write_down(row, request.run)
            yield row


def _require_scores(result: Evaluation, tell: Callable[[str], None]) -> None:
    """Tell why samples have no score.

    Raises:
        GuardStop: none has.
    """
    first = next((f"{p.text!r}: {e}" for p, e in zip(result.prompts, result.table.errors, strict=True) if e), "")
    if not any(result.counts.values()):
        raise GuardStop(f"None of the {result.failed} samples could be scored. The first is {first.rstrip('.')}.")
    if first:
        tell(f"{result.failed} samples could not be scored. The first is {first}")


def _open(request: EvaluateRequest, tell: Callable[[str], None]) -> _Setting:
    """Load the model, the prompts and the rewards."""
    device, rewards = choose_device(request.device), _rewards(request)
    if request.run is None:
        if request.prompts is None or not rewards:
            raise ConfigError(
                "diffrl evaluate --model needs --prompts SOURCE and at least one --reward NAME: a pipeline has none of "
                "its own. Add them."
            )
        source, listed = request.prompts, read_prompts(request.prompts)
        settings = EvalSettings(
            rewards=rewards, samples=SAMPLES_OF_A_PIPELINE, steps=STEPS_OF_A_PIPELINE, batch=BATCH_OF_A_PIPELINE
        )
        model = open_model(request, device, tell)
        fps, decode_batch = find_family(model.family).fps, request.batch or BATCH_OF_A_PIPELINE
    else:
        model = open_model(request, device, tell)
        assert model.run is not None
        config = model.run.config
        source, settings = request.prompts or config.prompts.held_out, config.eval
        fps, decode_batch = config.model.frame_rate, config.decode_batch
        listed = read_prompts(source)
    scorers = make_scorers(rewards or settings.rewards, "--reward" if rewards else "eval.rewards", device, fps)
    return _Setting(
        model=model,
        source=source,
        prompts=listed.prompts,
        scorers=scorers,
        settings=_replaced(settings, request),
        guidances=list(dict.fromkeys(request.guidance or [settings.guidance_scale])),
        decode_batch=decode_batch,
        notes=[*_changes(request, model.run, listed.prompts, scorers), *listed.notes],
    )


def _changes(
    request: EvaluateRequest, run: AlignedModel | None, prompts: Sequence[Prompt], scorers: Sequence[WeightedScorer]
) -> list[str]:
    """Say which of a run's own prompts and rewards are not as they were when it was trained."""
    if run is None or (trained_with := run.checkpoint.state.get("inputs")) is None:
        return []
    now: Inputs = {}
    if request.prompts is None:
        now["prompts.eval"] = digest_prompts(prompts[: run.config.eval.samples])
    if not request.reward:
        now |= digest_rewards("eval.rewards", run.config.eval.rewards, [one.scorer.spec for one in scorers])
    return warn_of_inputs(trained_with, now, str(request.run))


def _rewards(request: EvaluateRequest) -> tuple[RewardSettings, ...]:
    """Return the rewards that the command line names."""
    if not request.reward:
        return ()
    try:
        chosen = choose(request.reward, request.option or ())
    except RewardError as error:
        raise ConfigError(str(error)) from error
    return tuple(settings.model_copy(update={"weight": 1.0}) for settings in chosen)


def _replaced(settings: EvalSettings, request: EvaluateRequest) -> EvalSettings:
    """Return settings with what the command line gives in their place."""
    requested = {"samples": request.samples, "steps": request.steps, "batch": request.batch}
    return settings.model_copy(update={name: value for name, value in requested.items() if value is not None})


def _require_fit(setting: _Setting, prompts: Sequence[Prompt]) -> None:
    """Refuse scorers that cannot look at what will be drawn.

    Raises:
        ConfigError: says what is wrong.
    """
    require_media(find_family(setting.model.family), setting.scorers)
    require_metadata(setting.scorers, prompts, setting.source)
    require_pairs(setting.scorers, setting.settings.samples, len(prompts))
    require_sources(setting.model.family, setting.model.adapter, {setting.source: prompts})


def _keep(result: Evaluation, folder: Path, setting: _Setting) -> None:
    """Write a row's samples as `diffrl generate` does, their rewards beside them."""
    folder.mkdir(parents=True)
    fps = find_family(setting.model.family).fps
    values = {name: column.tolist() for name, column in {**result.table.raw, **result.table.parts}.items()}
    with (folder / SAMPLES).open("w", encoding="utf-8") as index:
        for i, (image, prompt, address) in enumerate(zip(result.images, result.prompts, result.addresses, strict=True)):
            scores = {name: column[i] if column[i] == column[i] else None for name, column in values.items()}
            key = (address.group, address.root, address.seed)
            beside = {"rewards": scores, "notes": result.table.notes_of(i)}
            write_sample(folder, index, image, prompt, *key, fps, beside)


def _write_down(row: Measured, run: Path) -> None:
    """Append a row to the run's evaluations.jsonl, whole and on the disk.

    Raises:
        DiffrlError: it cannot be written.
    """
    path = run / EVALUATIONS
    line = json.dumps(row.as_json()) + "\n"
    try:
        with path.open("ab", buffering=0) as file:  # one system call a line
            file.write(line.encode())
            os.fsync(file.fileno())
    except OSError as error:
        raise DiffrlError(f"Cannot write to {path}: {error.strerror or error}. What was measured: {line}") from error
