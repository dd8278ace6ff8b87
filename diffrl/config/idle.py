"""Keys that are given and change nothing, or not what they are there for: said, not refused.

They come to act with other keys, so a preset may carry them and be overridden either way.
"""

from __future__ import annotations

from collections.abc import Iterator

from diffrl.config.schema import Config
from diffrl.sections import Section

CLIPS = ("clip", "clip_high")


def unused_keys(config: Config) -> tuple[str, ...]:
    """Return a sentence for each reason why keys that were given do nothing, or undo what they are there for."""
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
    reasons += [(written & {key}, why) for key, why in o.idle_keys.items()]
    if o.trains_pairs:
        keys = {*_given(config.track, "track"), *_given(config.guards, "guards")}
        watched = {"guards.reward_hacking.diversity", "guards.reward_hacking.sharpness"}
        unused = {key for key in keys if key in watched or key.startswith("track.trees")}
        reasons.append((unused, f"with objective.kind: {o.kind} images are given, and none is drawn for training"))
    if config.guards.recover and config.run.evaluations == 2:
        why = "a run goes back after an evaluation before its last one, and run.eval_every asks for none"
        reasons.append(({"guards.recover"}, why))
    reasons.append(({"rollout.solver"} & _idle_solver(config), "no two steps without noise follow each other"))
    if config.model.negative_prompt is not None and not _guided(config):
        reasons.append(({"model.negative_prompt"}, "nothing is guided away from it: every guidance is 1"))
    idle = [f"Without effect: {', '.join(sorted(keys))}; {why}." for keys, why in reasons if keys]
    return (*idle, *_undone(config))


def _guided(config: Config) -> bool:
    """Return whether some network call has a second half of the negative prompt."""
    scales = [config.rollout.guidance_scale, config.eval.guidance_scale]
    scales += [config.kl_guidance] if config.objective.needs_reference else []
    scales += [config.loss_guidance(loss.guidance) for loss in config.objective.planned()]
    return any(config.model.facts.calls_per_step(scale) == 2 for scale in scales)


def _idle_solver(config: Config) -> set[str]:
    """Return the key of a second-order solver that never has two steps to go by, where nothing else asks for it."""
    r, completes = config.rollout, config.credit.value == "ode"
    noisy = [{*r.steps_at(i)} for i in r.window_places]
    pairs = any(not {step, step + 1} & steps for steps in noisy for step in range(r.steps - 1))
    return set() if pairs or completes or r.solver == "ode" else {"rollout.solver"}


def _undone(config: Config) -> Iterator[str]:
    """Yield what is said of keys that work against what they are there for."""
    r = config.rollout
    below = config.objective.needs_reference and config.kl_guidance < r.guidance_scale
    if below and config.objective.sample_guidance is None:
        yield (
            f"objective.kl_guidance: {config.kl_guidance:g} is below rollout.guidance_scale: {r.guidance_scale:g}, so "
            "kl pulls the guided policy away from what guidance gives."
        )
    if r.tree.splits and r.tree.correlation == 0:
        yield "With rollout.tree.correlation: 0 siblings get the same noise: the samples below a split are all equal."
    if r.explore is not None and r.explore.keep == r.explore.candidates:
        yield (
            f"rollout.explore chooses nothing: keep and candidates are both {r.explore.keep}, and every candidate is "
            "drawn twice."
        )


def _given(section: Section, path: str) -> Iterator[str]:
    """Yield paths of the keys of a section that were written down, those of its sections too."""
    for name in section.model_fields_set:
        yield f"{path}.{name}"
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _given(value, f"{path}.{name}")
