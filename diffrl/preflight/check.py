"""`diffrl check`: the dry halves of a run's opening, as a report."""

from __future__ import annotations

from diffrl.config import Config
from diffrl.config.idle import unused_keys
from diffrl.preflight.downloads import describe_downloads, downloads
from diffrl.preflight.machine import TargetMachine
from diffrl.preflight.preview import Preview
from diffrl.preflight.stages import look


def check_config(
    config: Config, processes: int = 1, target: TargetMachine | None = None, ask_rewards: bool = True
) -> list[str]:
    """Look at everything that a configuration names, for a run of so many processes.

    Args:
        config: the run.
        processes: that will share it.
        target: a machine that is not this one; memory and arithmetic are judged for it.
        ask_rewards: score an image of noise with every reward that is here.

    Returns:
        Lines that say what was found. The last ones say what this machine, or that one, cannot run: a configuration
        may be right all the same.

    Raises:
        DiffrlError: what is wrong; of several problems a ConfigError that lists them all.
    """
    findings = look(Preview(config, processes, target, loads_rewards=True, probes_rewards=ask_rewards))
    missing = downloads(config)
    verdict = "The configuration is fine but for what is not here yet." if missing else "The configuration is fine."
    if findings.not_here:
        machine = "this machine" if target is None else target.name
        verdict = f"The configuration is valid, and cannot run on {machine}:"
    return [
        *findings.lines,
        *unused_keys(config),
        *(f"{'' if number else 'to fetch':<12} {line}" for number, line in enumerate(describe_downloads(missing))),
        verdict,
        *(f"  - {reason}" for reason in findings.not_here),
    ]
