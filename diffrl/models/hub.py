"""Pipelines by their folder or by their name on the hub: class, files, and what went wrong in words."""

from __future__ import annotations

from pathlib import Path

from diffrl.bundled import pipeline_folder
from diffrl.errors import ConfigError
from diffrl.models.files import read_object
from reward_models.common.messages import cut, quote


def is_here(path: str) -> bool:
    """Return whether a pipeline's path is on this disk; False for a hub id.

    Raises:
        ConfigError: it is neither.
    """
    directory = pipeline_folder(path)
    if directory.exists():
        return True
    if is_hub_id(path) and not (directory.parent.is_dir() and directory.parent != Path()):
        return False
    raise ConfigError(
        f"model.path must be a diffusers directory or a hub id. Got {quote(path, 200)}, which does not exist here. "
        "Check the spelling."
    )


def is_hub_id(path: str) -> bool:
    """Return whether a path has the form of a model on the hub, OWNER/NAME."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(path)
    except HFValidationError:
        return False
    return path.count("/") == 1


def pipeline_class_of(path: str | Path, revision: str | None = None) -> str:
    """Return the pipeline class that a diffusers directory or hub id says it is.

    Raises:
        ConfigError: the directory's index cannot be read, or names no class.
        OSError, ValueError: the hub's cannot be had.
    """
    folder = pipeline_folder(path)
    if folder.is_dir():
        index = folder / "model_index.json"
        name = read_object(index).get("_class_name")
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{index} is not the index of a pipeline: it names no class. Save the pipeline again.")
        return name
    from diffusers import DiffusionPipeline

    return str(DiffusionPipeline.load_config(str(path), revision=revision).get("_class_name"))


def fetch(path: str | Path, revision: str | None = None, variant: str | None = None) -> Path:
    """Return the folder of a pipeline; of one on the hub that of its files here, fetched if they are not there yet."""
    folder = pipeline_folder(path)
    if folder.is_dir():
        return folder
    from diffusers import DiffusionPipeline

    return Path(DiffusionPipeline.download(str(path), revision=revision, variant=variant, use_safetensors=True))


def local_folder(path: str | Path, revision: str | None = None) -> Path | None:
    """Return the folder of a pipeline that is here, be it in the hub's cache; None if it would have to be fetched."""
    folder = pipeline_folder(path)
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache

    index = try_to_load_from_cache(str(path), "model_index.json", revision=revision) if is_hub_id(str(path)) else None
    return Path(index).parent if isinstance(index, str) else None


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and those that it was raised for: diffusers words the hub's errors anew."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return chain


def loading_problem(path: str, error: Exception) -> str:
    """Return what went wrong with a pipeline, in one sentence, and the way out."""
    names = {kind.__name__ for cause in _chain(error) for kind in type(cause).__mro__}
    if "GatedRepoError" in names:
        terms = f"Accept its terms at https://huggingface.co/{path}, then run `hf auth login`."
        return f"model.path {path!r} is gated. {terms}"
    if "RevisionNotFoundError" in names:
        return f"model.revision is no branch, tag or commit of {path!r}. Look at https://huggingface.co/{path}."
    if "RepositoryNotFoundError" in names:
        return (
            f"model.path {path!r} is no model on the hub that this account can see. Check the spelling; for a private "
            "one run `hf auth login`."
        )
    text = str(error).strip()
    if {"OfflineModeIsEnabled", "LocalEntryNotFoundError"} & names:
        return (
            f"model.path {path!r} is neither a folder here nor in the hub's cache, and the hub cannot be reached. "
            f"Fetch it with `hf download {path}` where there is a network, or give a folder."
        )
    reason = text.splitlines()[0] if text else type(error).__name__
    return f"model.path {path!r} could not be loaded: {cut(reason.rstrip('.'), 500)}. Check it, or save it again."
