"""Keys that are given and can change nothing, though nothing is wrong with them: said, not refused.

They come to act with another update or with an old policy that is an average, so a preset may carry them and be
overridden either way.
"""

from __future__ import annotations

from collections.abc import Iterator

from diffrl.config.schema import Config
from diffrl.sections import Section

CLIPS = ("clip", "clip_high")


def unused_keys(config: Config) -> tuple[str, ...]:
    """Return a sentence for each reason why keys of the objective that were given do nothing."""
    o, written = config.objective, set(_given(config.objective, "objective"))
    reasons = []
    if config.old_is_policy:
        on_policy = "with one update an iteration on the policy's own samples"
        clips = {key for key in written if key.rpartition(".")[2] in CLIPS}
        reasons.append((clips, f"{on_policy} every ratio is 1, but for rounding"))
        reasons.append((written & o.cancels_on_policy, f"{on_policy} the gradient does not depend on it"))
    if not o.old_policy_is_ema:
        rate = written & {"objective.old_decay_rate"}
        reasons.append((rate, "with objective.old_decay_max: 0 the old policy is the newest"))
    return tuple(f"Without effect: {', '.join(sorted(keys))}; {why}." for keys, why in reasons if keys)


def _given(section: Section, path: str) -> Iterator[str]:
    """Yield paths of the keys of a section that were written down, those of its sections too."""
    for name in section.model_fields_set:
        yield f"{path}.{name}"
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _given(value, f"{path}.{name}")
