"""Does the everyday suite notice? Mistakes put into the core one by one, each of which some test must fail on.

    python -m tests.attacks.mutations                  # all of them, one after the other: about 10 seconds each
    python -m tests.attacks.mutations --only tilt nft  # those whose place or change contains a word
    python -m tests.attacks.mutations --shard 0/2      # every second one

A mistake is a change of one expression in one function. `A.sqrt() -> A` replaces a square root by what is under it:
capital letters stand for any expression, everything else for itself, and the function must hold one such expression;
with `#2` behind it, the second is changed.
The mistake is made in a copy of the package in a temporary folder; the named tests then run there as `make test` runs
them, without those marked `long` or `slow`, until the first fails. The exit code is the number of mistakes that nobody
noticed. `tests/test_mutations.py` sees to it that all of them can still be made.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
COPIED = "diffrl"
LINKED = ("assets", "configs", "docs", "pyproject.toml", "reward_models", "scripts", "tests")


class Mutation(NamedTuple):
    """A mistake.

    Args:
        place: module below `diffrl` and, after a colon, the qualified name of a function, or of a constant.
        change: expression -> what stands there instead.
        tests: below `tests/`, what must notice.
    """

    place: str
    change: str
    tests: str

    @property
    def file(self) -> str:
        """Return the module's file below the root of the repository."""
        return f"{COPIED}/{self.place.partition(':')[0].replace('.', '/')}.py"


MUTATIONS = [
    Mutation(place, change, tests)
    for tests, mistakes in {
        "functional/test_advantages.py": {
            "functional.advantages:compare": [
                "A.mean if B else A.median -> A.median if B else A.mean",
                "~(A | B)[C] -> ~A[C]",
            ],
            "functional.advantages:population_std": ["(A - A.mean()).square().mean().sqrt() -> A.std()"],
            "functional.groups:GroupTable._middle": ["(A - 1) // 2 -> A // 2"],
        },
        "functional/test_tree_advantages.py": {
            "functional.advantages:sibling_advantage": ["A >= 0 if B else C & (A >= 0) -> A >= -1 if B else C"],
        },
        "functional/test_dynamics.py": {
            "functional.dynamics:_sde_step": ["2.0 * A -> A", "A.sqrt() -> A"],
            "functional.dynamics:ab2_step": ["A / (2.0 * B) -> A / B"],
            "functional.dynamics:cps_step": ["A * math.cos(B) -> A"],
        },
        "functional/test_gaussian.py": {
            "functional.gaussian:log_prob": ["A - B.log() -> A"],
            "functional.gaussian:kl": ["0.5 * A -> 1.0 * A"],
        },
        "functional/test_schedules.py": {"functional.schedules:sigma_grid": ["1.0 - A + B -> 1.0 + B"]},
        "functional/test_tree_values.py": {
            "functional.tree_values:fuse": ["A / sum_below(B, C) -> A / sum_below(B, C.ne(0).double())"],
            "functional.tree_values:path_weights": ["A * (B - C) -> B - C"],
        },
        "functional/test_turning_points.py": {
            "functional.turning_points:_balanced": ["torch.minimum(A, B) -> torch.maximum(A, B)"],
            "functional.turning_points:find_turning_points": ["A | _agree(B, C) -> _agree(B, C)", "A - B - C -> A - B"],
        },
        "functional/test_covariance.py": {
            "functional.covariance:sibling_covariance": ["A[B] - C -> A[B] - 1 #1"],
            "functional.covariance:between_variance": ["A.clamp_min(0) -> A"],
        },
        "functional/test_selection.py": {
            "functional.selection:best_worst": ["A - A // 2 -> A // 2"],
            "functional.selection:_gaps": ["lambda pair: A - B -> lambda pair: A"],
        },
        "functional/test_ranking.py": {"functional.ranking:_centred_rank": ["-0.5 * A -> 0.5 * A"]},
        "functional/test_losses.py": {
            "functional.losses:clipped_surrogate": ["(A < 0) & B -> (A > 0) & B"],
            "functional.losses:nft_loss": ["(1.0 - A) * B -> A * B"],
        },
        "functional/test_tilt_loss.py": {"functional.losses:tilt_loss": ["-2.0 * A -> 2.0 * A"]},
        "rollout/test_noise.py": {
            "rollout.noise:sibling_noise": ["A + B * (C / D) -> A + B * C"],
            "rollout.noise:_key": ["address.group -> 0"],
        },
        "rollout/test_tree.py": {"rollout.tree:subset": ["torch.where(A < 0, A, B) -> A"]},
        "rollout/test_complete.py": {"rollout.complete:complete": ["A[B] + 1 -> A[B] + 2"]},
        "rollout/test_select.py": {"rollout.select:choose": ["[A for A in B if A not in C] -> [A for A in B]"]},
        "rollout/test_denoise.py": {"rollout.denoise:denoise": ["(A, next(B), None) -> (A, next(B), previous)"]},
        "credit/test_assign.py": {
            "credit.assign:Scored.adds_nothing": ["_lone(A, B) -> torch.zeros_like(_lone(A, B))"],
            "credit.assign:_towards_extremes": ["A | B -> A"],
        },
        "objectives/test_grpo.py": {"objectives.grpo:GRPO.examples": ["A & (B != 0) -> A"]},
        "objectives/test_nft.py": {
            "objectives.noised:noised": ["(1.0 - A) * B + A * C -> B + A * C"],
            "functional.losses:nft_loss.matching": ["A.detach() -> A"],
        },
        "objectives/test_forward.py": {
            "functional.matching:group_weight": ["A * group_mean(B, C, D) -> group_mean(B, C, D)"],
            "functional.matching:implicit_reward": ["A - B -> B - A"],
            "objectives.noised:_noise": ["1.0 - A + A * B -> A * B"],
            "objectives.noised:SampleLoss.examples": ["noised(A, B, C, D, E) -> noised(A, B, C, D, False)"],
            "objectives.crd:CRD.precompute_group_terms": ["group_mean(A, B, C) -> group_mean(A, 0 * B, C)"],
        },
        "objectives/test_tilt.py": {
            "objectives.tilt:Tilt.examples": ["A if self.trains_uncredited else B -> B", "A & chosen -> A"],
            "objectives.tilt:Tilt.idle_units": ["A & ~B -> ~B"],
        },
        "training/test_tilt_training.py": {
            "training.update:Updater.update": ["C.kl_guidance -> C.rollout.guidance_scale"],
        },
        "training/test_forward_training.py": {
            "training.update:Updater.velocities": ["A.guidance -> self.config.rollout.guidance_scale"],
            "training.update:Updater._prepare": [
                "A.precompute_group_terms(B, C, D, E, F) -> A.precompute_group_terms(B, C[:1], D, E, F)"
            ],
        },
        "training/test_nft_training.py": {"training.gradient:accumulate_gradient": ["A / B[C] -> A / len(piece)"]},
        "training/test_ranks.py": {"training.gradient:accumulate_gradient": ["A.weight * B -> A.weight"]},
        "training/test_gradient.py": {"training.gradient:clip_gradient": ["A / (B + 1e-6) -> A"]},
        "training/test_loop.py": {
            "training.ema:EMA.update": ["1.0 - A -> A"],
            "training.optim:learning_rate_factor": ["1.0 + math.cos(A) -> 1.0 - math.cos(A)"],
        },
        "training/test_on_policy.py": {
            "rollout.density:ratio_errors": ["torch.expm1(A) -> torch.exp(A)"],
            "training.guards:check_on_policy": ["A if B else math.inf -> A if B else 0.0"],
        },
        "training/test_guards.py": {
            "training.guards:UpdateGuard.watch_spread": ["A + 1 if B else 0 -> A + 1 if B else A"],
        },
        "training/test_sampling.py": {"training.crediting:Crediting.assign": ["A & B.is_training_sample -> A"]},
        "cost/test_meter.py": {"cost.meter:training_cost": ["A + B * C[D] -> A + C[D]"]},
        "cost/test_plan.py": {"cost.plan:make_plan": ["A * B * C.origins -> B * C.origins"]},
        "checkpoint/test_checkpoint.py": {"checkpoint.files:_verify": ["A and _sha256(B) != C -> False"]},
        "checkpoint/test_state.py": {"checkpoint.state:restore_rng": ["np.random.set_state(A) -> None"]},
        "run/test_resume.py": {"run.recovery:restore_weights": ["average.restore(A) -> None"]},
        "rewards/test_score.py": {"functional.combine:scaled_reward": ["A * (B - C) -> A * B"]},
        "test_statistics.py": {
            "statistics:_student": ["stdtrit(A - 1, B) -> stdtrit(1e9, B)"],
            "statistics:holm": ["(len(A) - B) * C -> C"],
            "statistics:detectable": ["A / math.sqrt(B) -> A / math.sqrt(B - 1)"],
        },
        "studies/test_compare_curves.py": {
            "studies.compare.curves:cost_of_run": ["monotone(A) -> [point.score for point in A]"],
            "studies.compare.curves:cost_to": ["_end(A.low) -> A.mean"],
        },
        "studies/test_compare_pairing.py": {
            "studies.compare.pairing:SHARED": ['"prompts.per_iteration" -> "prompts.train"'],
        },
        "studies/test_compare.py": {"studies.compare.plan:Planned.of_seed": ["A.seed + B -> A.seed"]},
        "studies/test_compare_pairs.py": {
            "studies.compare.reported:read_reported": ['A.n + A.failed -> settings.get("samples")'],
            "studies.compare.pairs:power_line": [
                "math.inf if A is None else B -> math.inf if A is None else -B",
            ],
        },
    }.items()
    for place, changes in mistakes.items()
    for change in changes
]


def mutated(mutation: Mutation) -> str:
    """Return the source of a mutation's module with the mistake in it.

    Raises:
        ValueError: the function is not there, or holds other than one such expression.
    """
    module = ast.parse((ROOT / mutation.file).read_text(encoding="utf-8"))
    change, _, number = mutation.change.partition(" #")
    before, after = (ast.parse(side, mode="eval").body for side in change.split(" -> "))
    _, _, name = mutation.place.partition(":")
    places = [place for place in _nodes(_definition(module, name)) if _match(before, place.node, {})]
    if number:
        places = places[int(number) - 1 : int(number)]
    if len(places) != 1:
        raise ValueError(f"{mutation.place} must hold this once, and does {len(places)} times: {mutation.change}")
    bound: dict[str, ast.AST] = {}
    _match(before, places[0].node, bound)
    places[0].put(_Filled(bound).visit(copy.deepcopy(after)))
    return ast.unparse(module)


class Place(NamedTuple):
    """An expression, and where it hangs."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None

    def put(self, node: ast.AST) -> None:
        """Hang another one there."""
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def _definition(module: ast.Module, name: str) -> ast.AST:
    """The function of a qualified name, or the assignment of a constant."""
    node: ast.AST = module
    for part in name.split("."):
        inner = [child for child in ast.walk(node) if child is not node and part in _names(child)]
        if len(inner) != 1:
            raise ValueError(f"One thing must be called {name}. {len(inner)} are.")
        (node,) = inner
    return node


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()]


def _nodes(parent: ast.AST) -> Iterator[Place]:
    for field, value in ast.iter_fields(parent):
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST):
                yield Place(node, parent, field, index)
                yield from _nodes(node)


def _is_any(node: object) -> bool:
    return isinstance(node, ast.Name) and len(node.id) == 1 and node.id.isupper()


def _match(pattern: object, node: object, bound: dict[str, ast.AST]) -> bool:
    """Whether a node is as a pattern has it; what its letters stand for goes into `bound`."""
    if _is_any(pattern) and isinstance(node, ast.expr):
        known = bound.setdefault(pattern.id, node)  # type: ignore[attr-defined]
        return ast.unparse(known) == ast.unparse(node)
    if isinstance(pattern, list):
        return (
            isinstance(node, list)
            and len(pattern) == len(node)
            and all(_match(*pair, bound) for pair in zip(pattern, node, strict=True))
        )
    if isinstance(pattern, ast.expr_context):
        return True
    if isinstance(pattern, ast.AST):
        fields = ((getattr(pattern, field, None), getattr(node, field, None)) for field in pattern._fields)
        return type(pattern) is type(node) and all(_match(*pair, bound) for pair in fields)
    return type(pattern) is type(node) and pattern == node


class _Filled(ast.NodeTransformer):
    """Puts what letters stand for in their places."""

    def __init__(self, bound: dict[str, ast.AST]):
        self.bound = bound

    def visit_Name(self, node: ast.Name) -> ast.AST:  # noqa: N802
        """Replace a letter."""
        return copy.deepcopy(self.bound[node.id]) if _is_any(node) else node


def noticed(mutation: Mutation) -> bool:
    """Return whether a test fails, or cannot even be collected, with the mistake."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copytree(ROOT / COPIED, folder / COPIED, ignore=shutil.ignore_patterns("__pycache__"))
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)
        (folder / mutation.file).write_text(mutated(mutation), encoding="utf-8")
        tests = f"tests/{mutation.tests}"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", tests]
        environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1, 2):  # 5 is: no tests were found
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.returncode != 0


def main() -> int:
    """Make the mistakes; return the number of those that nobody noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], help="words, one of which the place or change contains")
    parser.add_argument("--shard", default="0/1", help="I/N: every N-th mistake, from the I-th")
    arguments = parser.parse_args()
    index, count = map(int, arguments.shard.split("/"))
    wanted = [m for m in MUTATIONS if any(word in m.place or word in m.change for word in arguments.only)][index::count]
    missed = 0
    for mutation in wanted:
        begun = time.monotonic()
        is_noticed = noticed(mutation)
        missed += not is_noticed
        words = "noticed" if is_noticed else "MISSED "
        print(f"{words} {time.monotonic() - begun:5.1f} s  {mutation.place}: {mutation.change}", flush=True)
    print(f"{len(wanted) - missed} of {len(wanted)} mistakes were noticed.")
    return missed


if __name__ == "__main__":
    sys.exit(main())
