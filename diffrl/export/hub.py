"""An export on the Hugging Face Hub: what its card says to the hub, and the upload."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from diffrl.config import Config
from diffrl.errors import ConfigError, NotHereError
from diffrl.models.published import hub_facts

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
IDENTIFIERS = {"Apache-2.0": "apache-2.0", "MIT": "mit", "CC BY-NC 4.0": "cc-by-nc-4.0"}
"""The hub's own names of licences; every other licence is "other" there, with its name and a link."""
TASKS = {
    ("image", False): "text-to-image",
    ("image", True): "image-to-image",
    ("video", False): "text-to-video",
    ("video", True): "image-to-video",
}
"""By what is drawn, and whether it begins with an image."""


def front_matter(config: Config, quantised: bool = False) -> str:
    """Return a card's metadata, as the hub reads it: base model and its licence, task, tags."""
    from huggingface_hub import ModelCardData

    facts, base = config.model.facts, config.model.path
    known = hub_facts(base) or {}
    relation, form = ("finetune", []) if config.model.lora is None else ("adapter", ["lora"])
    if quantised:
        relation, form = "quantized", ["modelopt"]
    licence, details = known.get("licence"), dict[str, Any](base_model_relation=relation)
    if licence in IDENTIFIERS:
        details["license"] = IDENTIFIERS[licence]
    elif licence:
        name = re.sub(r"[^a-z0-9.]+", "-", licence.lower()).strip("-")
        details |= {"license": "other", "license_name": name, "license_link": f"https://huggingface.co/{base}"}
    if REPOSITORY.fullmatch(base):  # a path of this machine is no base model that anybody else could look up
        details["base_model"] = base
    task = TASKS[facts.media, facts.edits]
    tags = ["diffrl", "reinforcement-learning", *form]
    return ModelCardData(library_name="diffusers", pipeline_tag=task, tags=tags, **details).to_yaml()


def require_repository(name: str) -> None:
    """Refuse what cannot be pushed to, before anything is loaded.

    Raises:
        ConfigError: it is no name of a repository.
        NotHereError: nobody is logged in, or the hub does not answer.
    """
    if not REPOSITORY.fullmatch(name):
        raise ConfigError(f"--push must name a repository of the hub, OWNER/NAME. Got {name!r}. Correct it.")
    from huggingface_hub import HfApi

    try:
        HfApi().whoami()
    except Exception as error:  # no token, a refused one, no network: the hub's own sentence says which
        raise NotHereError(
            f"--push needs the hub and an account there. Got: {_sentence(error)} Log in with `hf auth login`, or leave "
            "--push out and upload the folder later."
        ) from error


def push(folder: Path, name: str, private: bool) -> str:
    """Upload an export; what else the repository holds stays.

    Args:
        folder: the export.
        name: OWNER/NAME; made if there is none.
        private: whether one that is made can be seen by its owner alone.

    Returns:
        A line for the user.

    Raises:
        NotHereError: the hub refused; the folder is whole.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        made = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Aligned with diffrl")
    except Exception as error:
        raise NotHereError(
            f"The hub did not take {folder}: {_sentence(error)} The folder is whole. Try again: "
            f"hf upload {name} {folder}"
        ) from error
    return f"Pushed to {made}."


def _sentence(error: Exception) -> str:
    """Return an error's words in one line, with a full stop."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if words.endswith(".") else f"{words}."
