"""The model families, one file each: adapter, facts, LoRA targets and a tiny random pipeline.

Nothing heavy is imported here: configurations and plans read the facts.
"""

from __future__ import annotations

from collections.abc import Mapping

from diffrl.errors import ConfigError
from diffrl.models.families import (
    flux,
    flux2_klein,
    flux_kontext,
    hunyuan_video,
    krea2,
    qwen_image,
    qwen_image21,
    qwen_image_edit,
    sana,
    sd3,
    wan,
    wan_i2v,
    z_image,
)
from diffrl.models.family import Family
from diffrl.registry import resolve
from reward_models.common.messages import LONGEST_NAME, cut, show

__all__ = ["FAMILIES", "FILES", "Family", "find_family", "require_pipeline"]

FILES = (
    sd3,
    flux,
    sana,
    wan,
    qwen_image,
    z_image,
    flux2_klein,
    krea2,
    qwen_image21,
    flux_kontext,
    qwen_image_edit,
    wan_i2v,
    hunyuan_video,
)
"""A new family is one file and its name here; docs/add-a-model.md."""

FAMILIES: Mapping[str, Family] = {file.FAMILY.name: file.FAMILY for file in FILES}


def find_family(name: str) -> Family:
    """Return the facts of a family: of a name above, or of "module:Adapter", whose attribute `family` holds them.

    Raises:
        ConfigError: no such family, or an adapter that says nothing of itself.
    """
    if name in FAMILIES:
        return FAMILIES[name]
    adapter = resolve("model.family", {known: family.adapter for known, family in FAMILIES.items()}, name)
    family = getattr(adapter, "family", None)
    if not isinstance(family, Family):
        raise ConfigError(
            f"model.family {name!r} must be an adapter with an attribute `family`, a diffrl.models.families.Family. "
            f"Got {show(family)}."
        )
    return family


def require_pipeline(family: Family, class_name: str, path: str) -> None:
    """Refuse a pipeline class that the family's adapter does not load.

    Raises:
        ConfigError: names the family that does, if there is one.
    """
    if class_name in family.pipelines:
        return
    needs = " or ".join(family.pipelines)
    other = next((known for known in FAMILIES.values() if class_name in known.pipelines), None)
    if other is not None:
        way_out = f"Set model.family: {other.name}, or choose another path."
    else:
        known = "; ".join(f"{known.name}: {', '.join(known.pipelines)}" for known in FAMILIES.values())
        way_out = f"No family of this version loads that class ({known}). docs/add-a-model.md tells how to add one."
    raise ConfigError(
        f"model.family={family.name} needs a {needs}. Got {cut(class_name, LONGEST_NAME)} in {path!r}. {way_out}"
    )
