"""Keys that are given and can change nothing, though nothing is wrong with them: said, not refused.

They come to act with another update or a policy that lags, so a preset may carry them and be overridden either way.
"""

from __future__ import annotations

from diffrl.config.objective import CrdSettings, NftSettings, SampleSettings
from diffrl.config.schema import Config


def unused_keys(config: Config) -> tuple[str, ...]:
    """A sentence for each reason why keys of the objective that were given do nothing."""
    o = config.objective
    given = {f"objective.{key}" for key in o.model_fields_set}
    if isinstance(o, NftSettings) and o.edges is not None:
        given |= {f"objective.edges.{key}" for key in o.edges.model_fields_set}
    found = []
    if config.old_is_policy:
        own = "with one update an iteration on the policy's own samples"
        clips = {f"objective.{part}{key}" for part in ("", "edges.") for key in ("clip", "clip_high")}
        found.append((given & clips, f"{own} every ratio is 1, but for rounding"))
        if isinstance(o, (NftSettings, CrdSettings)):
            found.append((given & {"objective.beta"}, f"{own} the gradient does not depend on it"))
    if isinstance(o, SampleSettings) and not o.old_policy_is_ema:
        found.append(
            (given & {"objective.old_decay_rate"}, "with objective.old_decay_max: 0 the old policy is the newest")
        )
    return tuple(f"Without effect: {', '.join(sorted(keys))}; {why}." for keys, why in found if keys)
