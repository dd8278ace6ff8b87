"""Does the everyday suite notice? Mistakes put into the core one by one, each of which some test must fail on.

    python scripts/mutations.py                  # all of them, one after the other: about 10 seconds each
    python scripts/mutations.py --only tilt nft  # those whose file or text contains a word
    python scripts/mutations.py --shard 0/2      # every second one

Each mistake is made in a copy of the package in a temporary folder; the named tests then run there as `make test` runs
them, without those marked `long` or `slow`, until the first fails. The exit code is the number of mistakes that nobody
noticed. `tests/test_mutations.py` sees to it that every text is still in its file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = "diffrl"
LINKED = ("assets", "configs", "docs", "pyproject.toml", "reward_models", "scripts", "tests")


class Mutation(NamedTuple):
    """A mistake.

    Args:
        file: below `diffrl/`.
        old: a text that is in the file exactly once.
        new: what stands there instead.
        tests: below `tests/`, what must notice.
    """

    file: str
    old: str
    new: str
    tests: str


MUTATIONS = [
    # --- functional: advantages
    Mutation(
        "functional/advantages.py",
        'table.mean if baseline == "mean" else table.median',
        'table.median if baseline == "mean" else table.mean',
        "functional/test_advantages.py",
    ),
    Mutation(
        "functional/advantages.py",
        "trains = usable & centre.isfinite() & ~(flat | few)[table.row]",
        "trains = usable & centre.isfinite() & ~flat[table.row]",
        "functional/test_advantages.py",
    ),
    Mutation(
        "functional/advantages.py",
        "return (usable - usable.mean()).square().mean().sqrt()",
        "return usable.std()",
        "functional/test_advantages.py",
    ),
    Mutation(
        "functional/advantages.py",
        "edges = parent >= 0 if ok is None else ok & (parent >= 0)",
        "edges = parent >= -1 if ok is None else ok",
        "functional/test_tree_advantages.py",
    ),
    Mutation(
        "functional/groups.py",
        "_at(ordered, (self.size - 1) // 2)",
        "_at(ordered, self.size // 2)",
        "functional/test_advantages.py",
    ),
    # --- functional: steps and their densities
    Mutation("functional/dynamics.py", "g.square() / (2.0 * s) *", "g.square() / s *", "functional/test_dynamics.py"),
    Mutation("functional/dynamics.py", "g * d.sqrt())", "g * d)", "functional/test_dynamics.py"),
    Mutation("functional/dynamics.py", "h / (2.0 * (s - before))", "h / (s - before)", "functional/test_dynamics.py"),
    Mutation("functional/dynamics.py", "n * math.cos(angle) * epshat", "n * epshat", "functional/test_dynamics.py"),
    Mutation(
        "functional/gaussian.py",
        "row_mean(-0.5 * z.square() - std.log())",
        "row_mean(-0.5 * z.square())",
        "functional/test_gaussian.py",
    ),
    Mutation("functional/gaussian.py", "row_mean(0.5 * ((", "row_mean(1.0 * ((", "functional/test_gaussian.py"),
    Mutation(
        "functional/schedules.py",
        "((1.0 - even) + shift * even)",
        "(1.0 + shift * even)",
        "functional/test_schedules.py",
    ),
    # --- functional: trees
    Mutation(
        "functional/tree_values.py",
        "sum_below(parent, weight * reward) / sum_below(parent, weight)",
        "sum_below(parent, weight * reward) / sum_below(parent, scored.double())",
        "functional/test_tree_values.py",
    ),
    Mutation(
        "functional/tree_values.py",
        "(beta * (path - highest[tree]))",
        "(path - highest[tree])",
        "functional/test_tree_values.py",
    ),
    Mutation(
        "functional/turning_points.py",
        "(first | _agree(-step[origin], gain))",
        "_agree(-step[origin], gain)",
        "functional/test_turning_points.py",
    ),
    Mutation(
        "functional/turning_points.py",
        "torch.minimum(positive, negative)",
        "torch.maximum(positive, negative)",
        "functional/test_turning_points.py",
    ),
    Mutation(
        "functional/turning_points.py",
        "extra = (end - worth[origin] - step[node])",
        "extra = (end - worth[origin])",
        "functional/test_turning_points.py",
    ),
    Mutation(
        "functional/covariance.py", "others = m[node] - own_m", "others = m[node] - 1", "functional/test_covariance.py"
    ),
    Mutation(
        "functional/selection.py", "total - total // 2, total)", "total // 2, total)", "functional/test_selection.py"
    ),
    Mutation(
        "functional/selection.py",
        "pair: ranked.values[pair[0]] - ranked.values[pair[1]])",
        "pair: ranked.values[pair[0]])",
        "functional/test_selection.py",
    ),
    Mutation(
        "functional/ranking.py", "-0.5 * signs.sum(dim=1)", "0.5 * signs.sum(dim=1)", "functional/test_ranking.py"
    ),
    # --- functional: losses
    Mutation(
        "functional/losses.py",
        "((advantage < 0) & (ratio < 1.0 - clip_low))",
        "((advantage > 0) & (ratio < 1.0 - clip_low))",
        "functional/test_losses.py",
    ),
    Mutation("functional/losses.py", "(1.0 - r) * minus", "r * minus", "functional/test_losses.py"),
    Mutation(
        "functional/losses.py", "row_mean(error.detach().abs())", "row_mean(error.abs())", "functional/test_losses.py"
    ),
    Mutation(
        "functional/losses.py", "loss = -2.0 * row_mean(", "loss = 2.0 * row_mean(", "functional/test_tilt_loss.py"
    ),
    # --- rollout
    Mutation("rollout/noise.py", "own * (c / scale)", "own * c", "rollout/test_noise.py"),
    Mutation("rollout/noise.py", "        address.group,\n", "        0,\n", "rollout/test_noise.py"),
    Mutation(
        "rollout/tree.py",
        "torch.where(parent < 0, parent, renumbered[parent.clamp_min(0)])",
        "parent",
        "rollout/test_tree.py",
    ),
    Mutation(
        "rollout/complete.py",
        "start = forest.step[nodes] + 1",
        "start = forest.step[nodes] + 2",
        "rollout/test_complete.py",
    ),
    Mutation(
        "rollout/select.py",
        "for row in order.tolist() if row not in reason]",
        "for row in order.tolist()]",
        "rollout/test_select.py",
    ),
    Mutation(
        "rollout/denoise.py",
        "branch.next_latents, next(following), None",
        "branch.next_latents, next(following), previous",
        "rollout/test_denoise.py",
    ),
    Mutation("rollout/density.py", "torch.expm1(density - ", "torch.exp(density - ", "training/test_on_policy.py"),
    # --- credit and objectives
    Mutation(
        "credit/assign.py",
        "return _lone(self.forest, self.usable)",
        "return torch.zeros_like(_lone(self.forest, self.usable))",
        "credit/test_assign.py",
    ),
    Mutation(
        "credit/assign.py", "(from_best < best) | (from_worst < best)", "from_best < best", "credit/test_assign.py"
    ),
    Mutation("objectives/grpo.py", "in_loss & (advantage != 0)", "in_loss", "objectives/test_grpo.py"),
    Mutation(
        "objectives/noised.py",
        "(1.0 - level) * clean + level * noise",
        "clean + level * noise",
        "objectives/test_nft.py",
    ),
    Mutation("objectives/noised.py", "1.0 - noise_range + noise_range", "noise_range", "objectives/test_forward.py"),
    Mutation(
        "objectives/dgpo.py",
        "shared: ClassVar[bool] = True",
        "shared: ClassVar[bool] = False",
        "objectives/test_forward.py",
    ),
    Mutation(
        "objectives/crd.py", "taken.cell, taken.active)", "0 * taken.cell, taken.active)", "objectives/test_forward.py"
    ),
    Mutation("functional/matching.py", "beta * group_mean(gained", "group_mean(gained", "functional/test_matching.py"),
    Mutation(
        "functional/matching.py",
        "matching(v_old.detach()) - matching(v)",
        "matching(v) - matching(v_old.detach())",
        "functional/test_matching.py",
    ),
    Mutation(
        "training/update.py",
        "conditioning, self.config.kl_guidance)",
        "conditioning, self.config.rollout.guidance_scale)",
        "training/test_tilt_training.py",
    ),
    Mutation(
        "training/update.py",
        "conditioning, loss.guidance)",
        "conditioning, self.config.rollout.guidance_scale)",
        "training/test_forward_training.py",
    ),
    Mutation(
        "training/update.py",
        "index, policy, reference, micro_batch)",
        "index[:1], policy, reference, micro_batch)",
        "training/test_forward_training.py",
    ),
    Mutation(
        "objectives/tilt.py",
        "active = used if self.trains_uncredited else moves",
        "active = moves",
        "objectives/test_tilt.py",
    ),
    # --- training
    Mutation("training/gradient.py", "/ planned[number]))", "/ len(piece)))", "training/test_nft_training.py"),
    Mutation("training/gradient.py", "term.weight * ranks.world", "term.weight", "training/test_ranks.py"),
    Mutation("training/gradient.py", "limit / (norm + 1e-6)", "limit", "training/test_gradient.py"),
    Mutation("training/ema.py", "1.0 - self.decay)", "self.decay)", "training/test_loop.py"),
    Mutation("training/optim.py", "0.5 * (1.0 + math.cos(", "0.5 * (1.0 - math.cos(", "training/test_loop.py"),
    Mutation(
        "training/guards.py",
        "error if math.isfinite(error) else math.inf for",
        "error if math.isfinite(error) else 0.0 for",
        "training/test_on_policy.py",
    ),
    Mutation(
        "training/guards.py",
        ">= s.fraction * groups else 0",
        ">= s.fraction * groups else self.flat_iterations",
        "training/test_guards.py",
    ),
    Mutation(
        "training/crediting.py", "usable = ok & samples.is_training_sample", "usable = ok", "training/test_sampling.py"
    ),
    # --- what a run costs, keeps and goes on from
    Mutation(
        "cost/meter.py",
        '+ trained * counts["evaluations/update"]',
        '+ counts["evaluations/update"]',
        "cost/test_meter.py",
    ),
    Mutation(
        "cost/plan.py", '"gate": guided * groups * first.origins', '"gate": groups * first.origins', "cost/test_plan.py"
    ),
    Mutation(
        "checkpoint/files.py", "if hashes and _sha256(file) != sha256", "if False", "checkpoint/test_checkpoint.py"
    ),
    Mutation("checkpoint/state.py", '    np.random.set_state(states["numpy"])\n', "", "checkpoint/test_state.py"),
    Mutation("run/lifecycle.py", "average.restore(tensors[name])", "pass", "run/test_resume.py"),
    Mutation("functional/combine.py", "return weight * (raw - shift)", "return weight * raw", "rewards/test_score.py"),
    # --- studies: what a comparison says
    Mutation(
        "statistics.py",
        "stdtrit(n - 1, (1 + LEVEL) / 2)",
        "stdtrit(1e9, (1 + LEVEL) / 2)",
        "test_statistics.py",
    ),
    Mutation(
        "statistics.py",
        "(len(p_values) - rank) * p_values[i]",
        "p_values[i]",
        "test_statistics.py",
    ),
    Mutation(
        "statistics.py",
        "_detectable_shift(n) * sd / math.sqrt(n)",
        "_detectable_shift(n) * sd / math.sqrt(n - 1)",
        "test_statistics.py",
    ),
    Mutation(
        "studies/compare/curves.py",
        "for point in curve], monotone(curve), target)",
        "for point in curve], [point.score for point in curve], target)",
        "studies/test_compare_curves.py",
    ),
    Mutation("studies/compare/curves.py", "_end(one.low) for", "one.mean for", "studies/test_compare_curves.py"),
    Mutation("studies/compare/pairing.py", '    "prompts.per_iteration",\n', "", "studies/test_compare_pairing.py"),
    Mutation(
        "studies/compare/plan.py", "self.config.run.seed + number", "self.config.run.seed", "studies/test_compare.py"
    ),
    Mutation("studies/compare/reported.py", ' == settings.get("samples")', " >= 0", "studies/test_compare_pairs.py"),
    Mutation(
        "studies/compare/pairs.py",
        "if pair.unseen is None else pair.unseen, default",
        "if pair.unseen is None else -pair.unseen, default",
        "studies/test_compare_pairs.py",
    ),
]


def mutated(mutation: Mutation, folder: Path) -> None:
    """Write the project with the mistake in it into an empty folder; all but the package are links."""
    shutil.copytree(ROOT / COPIED, folder / COPIED, ignore=shutil.ignore_patterns("__pycache__"))
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    path = folder / COPIED / mutation.file
    text = path.read_text(encoding="utf-8")
    assert text.count(mutation.old) == 1, f"{mutation.file} must hold this once: {mutation.old}"
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")


def noticed(mutation: Mutation) -> bool:
    """Whether a test fails, or cannot even be collected, with the mistake."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        mutated(mutation, folder)
        tests = [f"tests/{name}" for name in mutation.tests.split()]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1, 2):  # 5 is: no tests were found
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.returncode != 0


def main() -> int:
    """Make the mistakes; the number of those that nobody noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], help="words, one of which the file or the text contains")
    parser.add_argument("--shard", default="0/1", help="I/N: every N-th mistake, from the I-th")
    arguments = parser.parse_args()
    index, count = map(int, arguments.shard.split("/"))
    wanted = [m for m in MUTATIONS if any(word in m.file or word in m.old for word in arguments.only)][index::count]
    missed = []
    for mutation in wanted:
        begun = time.monotonic()
        found = noticed(mutation)
        seconds = time.monotonic() - begun
        print(
            f"{'noticed' if found else 'MISSED '} {seconds:5.1f} s  {mutation.file}: {mutation.old.strip()}", flush=True
        )
        if not found:
            missed.append(mutation)
    print(f"{len(wanted) - len(missed)} of {len(wanted)} mistakes were noticed.")
    return len(missed)


if __name__ == "__main__":
    sys.exit(main())
