"""The prompts of a run: read, held against the model's tokenizers, and, where they are edits, their images opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diffrl.bundled import pipeline_folder
from diffrl.config import Config
from diffrl.data.pairs import require_given_pairs
from diffrl.data.prompts import read_prompts
from diffrl.data.sources import read_sources, require_sources
from diffrl.errors import ConfigError
from diffrl.models.shipped import shipped_settings
from diffrl.models.text_encoders import TextReader, text_readers, tokenizers_of
from diffrl.preflight.downloads import NOT_HERE, require_reader
from diffrl.preflight.preview import EVAL, TRAIN, Opening, Preview, below
from diffrl.training.prompt_report import PromptReport, add_encoders, read_by_encoders, report_prompts

if TYPE_CHECKING:  # a plan needs no torch
    from diffrl.records import Prompt
    from diffrl.rewards.score import WeightedScorer


def dry_train(preview: Preview) -> str:
    """Read the training prompts."""
    source = preview.config.prompts.train
    if preview.target is None:
        require_reader(source)
    if preview.train_list is None:
        return f"{source} {NOT_HERE}"
    listed, notes = preview.train_list
    _require_sources(preview.config, listed, TRAIN)
    return below(
        f"{len(listed):,} to train on{_images(listed, TRAIN)}", [*notes, *_unused_pairs(preview.config, listed)]
    )


def dry_held_out(preview: Preview) -> str:
    """Read the held-out prompts."""
    source = preview.config.prompts.held_out
    if preview.target is None:
        require_reader(source)
    if preview.eval_list is None:
        return f"{source} {NOT_HERE}"
    listed, notes = preview.eval_list
    evaluated = preview.prompts[EVAL]
    _require_sources(preview.config, evaluated, EVAL)
    more = [] if source == preview.config.prompts.train else notes
    return below(f"{len(listed):,} held out{_images(evaluated, EVAL)}", more)


def open_prompts(opening: Opening) -> None:
    """Fetch the prompts that the dry halves did not have.

    Raises:
        ConfigError: they cannot be read, or do not fit the family.
    """
    preview, prompts = opening.preview, opening.config.prompts
    for key, source in ((TRAIN, prompts.train), (EVAL, prompts.held_out)):
        here = preview.train_list if key == TRAIN else preview.eval_list
        listed, notes = here or read_prompts(source)
        opening.prompts[key] = listed if key == TRAIN else listed[: opening.config.eval.samples]
        opening.listing += (*notes, *(_unused_pairs(opening.config, listed) if key == TRAIN else ()))
        if here is None:
            _require_sources(opening.config, opening.prompts[key], key)


def report_encoders(config: Config, lists: Mapping[str, Sequence[Prompt]]) -> tuple[PromptReport, bool]:
    """Report the prompts that the model's text encoders cut, by their tokenizers alone.

    Returns:
        The report, and whether it is all that the loaded model would add: prompts and tokenizers are here.
    """
    report, complete = PromptReport(), {TRAIN, EVAL} <= lists.keys()
    if not read_by_encoders(config.prompts, lists) and config.model.negative_prompt is None:
        return report, complete
    folder = _pipeline_here(config.model.path)
    if folder is None:
        return report, False
    add_encoders(report, config.prompts, lists, _encoders(config, folder), config.model.negative_prompt)
    return report, complete


def look_at_prompts(preview: Preview, scorers: Mapping[str, Sequence[WeightedScorer]]) -> PromptReport:
    """Report on the prompts that are here.

    Args:
        preview: of the run.
        scorers: rewards by the key of the prompts that they score.
    """
    report = report_prompts(preview.config.prompts, preview.prompts, scorers)
    return report.joined(preview.encoder_report[0])


def plan_notes(preview: Preview) -> list[str]:
    """Return what a plan says of prompts; a list that cannot be read is the business of `diffrl check`."""
    try:
        report = look_at_prompts(preview, {})
    except ConfigError:
        return []
    return [*report.notes, *report.problems]


def _require_sources(config: Config, prompts: Sequence[Prompt], key: str) -> None:
    """Refuse prompts that fit neither family nor objective, and images of another shape where that is configured."""
    m = config.model
    size = None if m.height is None or m.width is None else (m.height, m.width)
    require_sources(prompts, key, m.family, m.facts.edits, size)
    if key == TRAIN and config.objective.trains_pairs:
        require_given_pairs(prompts, key, size if m.facts.media == "image" else None)


def _unused_pairs(config: Config, prompts: Sequence[Prompt]) -> list[str]:
    """Say that a list has pairs where they train nothing."""
    pairs = 0 if config.objective.trains_pairs else sum(prompt.pair is not None for prompt in prompts)
    kind = config.objective.kind
    return [f"{pairs:,} prompts name a pair, which objective.kind: {kind} does not use; dpo does."] if pairs else []


def _images(prompts: Sequence[Prompt], key: str) -> str:
    """Return how many of the images to edit were opened, as training will."""
    read = read_sources(prompts, key)
    return f", with images: {read}" if read else ""


def _encoders(config: Config, folder: Path) -> list[TextReader]:
    """Return the text encoders of a pipeline that is here."""
    m = config.model
    longest = m.max_sequence_length or shipped_settings(folder).get("max_sequence_length")
    tokenizers = tokenizers_of(m.facts.text_encoders, folder)
    return text_readers(m.facts.text_encoders, tokenizers, longest or m.facts.max_sequence_length)


def _pipeline_here(path: str) -> Path | None:
    """Return the folder of a pipeline, also in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.utils import HFValidationError

    folder = pipeline_folder(path)
    if folder.is_dir():
        return folder
    try:
        index = try_to_load_from_cache(path, "model_index.json")
    except HFValidationError:
        return None
    return Path(index).parent if isinstance(index, str) else None
