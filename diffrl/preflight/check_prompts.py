"""What `diffrl check` and `diffrl plan` say of the prompts themselves, with the tokenizers alone of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diffrl.bundled import pipeline_folder
from diffrl.config import Config
from diffrl.data.prompts import load_prompts
from diffrl.errors import ConfigError
from diffrl.models.shipped import shipped_settings
from diffrl.models.text_encoders import TextReader, text_readers, tokenizers_of
from diffrl.preflight.downloads import is_away
from diffrl.training.prompt_report import PromptReport, add_encoders, read_by_encoders, report_prompts

if TYPE_CHECKING:  # a plan needs no torch
    from diffrl.rewards.score import WeightedScorer


def look_at_prompts(config: Config, scorers: Mapping[str, Sequence[WeightedScorer]]) -> PromptReport:
    """Look at the prompts that are here.

    Args:
        config: of the run.
        scorers: rewards by the place of the prompts that they score.
    """
    sources = {"prompts.train": config.prompts.train, "prompts.eval": config.prompts.held_out}
    lists = {place: load_prompts(source) for place, source in sources.items() if not is_away(source)}
    if "prompts.eval" in lists:
        lists["prompts.eval"] = lists["prompts.eval"][: config.eval.samples]
    report = report_prompts(config.prompts, lists, scorers)
    if read_by_encoders(config.prompts, lists):  # transformers takes seconds to import
        add_encoders(report, config.prompts, lists, _encoders(config))
    return report


def plan_notes(config: Config) -> list[str]:
    """Return what a plan says of prompts; a list that cannot be read is the business of `diffrl check`."""
    try:
        report = look_at_prompts(config, {})
    except ConfigError:
        return []
    return [*report.notes, *report.problems]


def _encoders(config: Config) -> list[TextReader]:
    """The text encoders of a pipeline that is here; of one that is not, the start of the run counts."""
    m = config.model
    folder = _folder(m.path)
    if folder is None:
        return []
    shipped = shipped_settings(folder).get("max_sequence_length")
    longest = m.max_sequence_length or shipped or m.facts.max_sequence_length
    return text_readers(m.facts.text_encoders, tokenizers_of(m.facts.text_encoders, folder), longest)


def _folder(path: str) -> Path | None:
    """The folder of a pipeline, also in the hub's cache."""
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
