"""The comparisons that docs/results.md is made of: their arms, and the questions that were written down before."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from measuring.spaces import BUDGET, FOLDERS, SPACES, best, read_trials, trials_file

TREE = "rollout.tree={roots: 1, branches: 4, splits: [0, 2], correlation: 4.0}"
GRPO = "objective={kind: grpo, clip: 1.0e-3} train.warmup_updates=6"
NFT = "objective={kind: nft, kl: 0.0} credit={} train.warmup_updates=2"
ONE = "train.updates_per_iteration=1 train.warmup_updates=2"
EXPLORE = "rollout.explore={precision: nvfp4, engine: emulated, candidates: 48, keep: 16, audit: 0, select: %s}"
UNSEEN = "run.seed=10 eval.seed=4321"
"""Seeds and held-out noise that no setting was chosen on."""


@dataclass(frozen=True)
class Group:
    """One comparison, and what is asked of it."""

    arms: dict[str, str]  # label -> configuration and overrides
    budget: int  # evaluations of a run, priced
    seeds: int  # of each arm
    questions: dict[str, tuple[tuple[str, str], ...]]  # question -> pairs (first, second): second less first answers it
    prices: str = "equal"  # of evaluations
    evals: int = 2  # held-out evaluations of a run, besides the one before it
    guidance: tuple[float, ...] = ()  # scales that base and aligned model are measured with, besides none; nor that
    own_noise: bool = False  # whether each seed is evaluated on noise of its own


RATES = {
    "shapes": {
        "diffrl": 3e-4,
        "guidance distilled": 1e-3,
        "tilt": 3e-4,
        "chains, nft": 2e-4,
        "chains, awm": 2e-4,
        "chains, crd": 2e-4,
        "chains, dgpo": 6e-4,
    },
    "words": {
        "diffrl": 3e-4,
        "tilt, rate of diffrl": 3e-4,
        "guidance distilled": 1e-3,
        "chains, nft": 2e-4,
        "chains, crd": 2e-4,
        "chains, dgpo": 3e-4,
    },
}
"""Learning rates that are not 1.5e-4, as chosen on `tune` (docs/results.md)."""


def factorial(world: str) -> dict[str, str]:
    """Return a world's factorial: 4 merged steps, 8 prompts of 16 samples, second-order where no noise is."""
    common = f"rollout.steps=4 prompts.per_iteration=8 {UNSEEN} track.trees=null"

    def arm(preset: str, *overrides: str) -> str:
        return " ".join([f"{FOLDERS[world]}/{preset}.yaml", common, *overrides])

    def tree(*overrides: str) -> str:
        return arm("diffrl_nft", "rollout.solver=ab2", TREE, *overrides)

    def credit(reward: str, value: str = "leaves") -> str:
        return f"credit={{reward: {reward}, value: {value}, normalise: depth}}"

    arms = {
        "diffrl": arm("diffrl", "rollout.solver=ab2"),
        "tilt": arm("diffrl", "rollout.solver=ab2 objective={kind: tilt, kl: 0.0}"),
        "chains, nft": arm("diffusion_nft", ONE),
        "chains, grpo": arm("flow_grpo", "train.updates_per_iteration=2 train.warmup_updates=2"),
        "tree, grpo, incremental": tree(GRPO, credit("incremental")),
        "tree, grpo, outcome": tree(GRPO, "credit={}"),
        "tree, grpo, turning points": tree(GRPO, credit("turning_point")),
        "chains, awm": arm("awm", "objective.levels=1 train.warmup_updates=2"),
        "tree, nft": tree(NFT),
        "forest, nft": arm("diffrl_nft", "rollout.solver=ab2", NFT),
        "chains, crd": arm("crd", "objective.levels=1", ONE),
        "chains, dgpo": arm("dgpo", "objective.levels=3 objective.kl=0.0 train.warmup_updates=1"),
        "chains, art": arm("art", "train.warmup_updates=2"),
        "chains, art, one update": arm("art", ONE),
        "tree, grpo, turning points, ode": tree(GRPO, credit("turning_point", "ode")),
        "tree, grpo, incremental, ode": tree(GRPO, credit("incremental", "ode")),
    }
    teacher = {"shapes": 3.0, "words": 5.0}[world]
    arms["guidance distilled"] = (
        arm("awm", f"objective.levels=3 objective.kl=1.0e3 objective.kl_guidance={teacher}")
        + " rollout.tree.roots=2 train.updates_per_iteration=1 train.warmup_updates=3"
    )
    if world == "words":  # where the two have different rates
        arms["tilt, rate of diffrl"] = arms["tilt"]
    rates = RATES[world]
    return {label: f"{text} train.learning_rate={rates.get(label, 1.5e-4)}" for label, text in arms.items()}


RIVALS = ("chains, nft", "chains, awm", "chains, dgpo", "chains, crd", "chains, grpo", "chains, art")
QUESTIONS = {
    "Does a tree pay?": (
        ("chains, grpo", "tree, grpo, outcome"),
        ("chains, nft", "tree, nft"),
        ("chains, nft", "forest, nft"),
    ),
    "Does step credit pay?": (("tree, grpo, outcome", "tree, grpo, incremental"),),
    "Do turning points pay?": (
        ("tree, grpo, incremental", "tree, grpo, turning points"),
        ("tree, grpo, incremental, ode", "tree, grpo, turning points, ode"),
    ),
    "Do values by the ODE pay?": (("tree, grpo, incremental", "tree, grpo, incremental, ode"),),
    "Does tree tilt pay?": tuple((rival, "tilt") for rival in (*RIVALS, "tree, grpo, incremental", "tree, nft")),
    "Does the guided reference pay?": (("tilt", "diffrl"), ("tilt, rate of diffrl", "diffrl")),
    "Does diffrl pay?": tuple((rival, "diffrl") for rival in RIVALS),
    "Does DiffusionART's second update pay?": (("chains, art, one update", "chains, art"),),
    "Is it more than guidance?": (("guidance distilled", "diffrl"),),
}


def _answered(
    questions: dict[str, tuple[tuple[str, str], ...]], arms: Iterable[str]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the questions that some arms answer."""
    asked = {question: tuple(p for p in pairs if set(p) <= set(arms)) for question, pairs in questions.items()}
    return {question: pairs for question, pairs in asked.items() if pairs}


def pool(price: float) -> Group:
    """Return DiffusionNFT with and without a pool of 48, explored at a price: Sol-RL's idea, else equal runs."""
    plain = factorial("shapes")["chains, nft"]
    arms = {
        "no pool": plain,
        "pool, best and worst": f"{plain} {EXPLORE % 'best_worst'}",
        "pool, random": f"{plain} {EXPLORE % 'random'}",
    }
    questions = {
        "Does a pool pay?": (("no pool", "pool, best and worst"),),
        "Is it the choice?": (("pool, random", "pool, best and worst"),),
    }
    return Group(arms, 20_000, 5, questions, f"equal,nvfp4={price:g}")


def parts(world: str) -> Group:
    """Return tree tilt with one part removed, or one of the chain's others added; a pool at a tenth of the price."""
    tilt = factorial(world)["tilt"]
    arms = {
        "tilt": tilt,
        "first-order solver": f"{tilt} rollout.solver=ode",
        "noise at every step": f"{tilt} rollout.solver=ode rollout.stochastic={{kind: all}}",
        "one split of 16": f"{tilt} rollout.tree={{roots: 1, branches: 16, splits: [0], correlation: 4.0}}",
        "pool of trees, by contrast": f"{tilt} {EXPLORE % 'sibling_contrast'}",
        "pool of trees, random": f"{tilt} {EXPLORE % 'random'}",
    }
    questions = {
        "What does it lose without a part?": tuple(("tilt", label) for label in list(arms)[1:4]),
        "Does a pool pay?": (("tilt", "pool of trees, by contrast"),),
        "Is it the choice?": (("pool of trees, random", "pool of trees, by contrast"),),
    }
    return Group(arms, 20_000, 5, questions, "equal,nvfp4=0.1")


def moving() -> Group:
    """Return the video world once: its recipe against chains, at rates that were chosen on shapes."""
    tilt = f"configs/tiny-wan/quickstart.yaml {UNSEEN} track.trees=null"
    chains = f"{tilt} rollout.tree={{roots: 16}}"
    nft = f"rollout.stochastic={{kind: none}} rollout.dynamics=null {NFT} train.learning_rate=2e-4"
    grpo = f"rollout.solver=ode rollout.stochastic={{kind: all}} {GRPO} train.updates_per_iteration=2"
    arms = {
        "tilt": tilt,
        "chains, nft": f"{chains} {nft}",
        "chains, grpo": f"{chains} {grpo} train.warmup_updates=2 train.learning_rate=1.5e-4",
    }
    questions = {"Does tree tilt pay?": (("chains, nft", "tilt"), ("chains, grpo", "tilt"))}
    return Group(arms, 20_000, 3, questions, evals=1)


DRAW = "rollout.draw={precision: %s, engine: %s, sync_every: %d, fidelity: {every: null}}"
"""Nothing is audited: arms of equal iterations cost the same."""
LOW = {"bfloat16": "auto", "int8": "auto", "fp8": "emulated", "nvfp4": "emulated"}
SPLITS = {4: "[0, 2]", 10: "[0, 4]"}


def low_precision_trees(
    world: str, steps: int, precisions: Iterable[str], ages: Iterable[int] = (), **options: Any
) -> Group:
    """Return the preset, its trees drawn by the policy, by copies of lower precision, and by one that lags."""
    full = factorial(world)["diffrl"].replace("rollout.steps=4", f"rollout.steps={steps}")
    full += f" rollout.tree={{roots: 1, branches: 4, splits: {SPLITS[steps]}, correlation: 4.0}}"
    arms = {"drawn in full": full}
    arms |= {f"drawn in {name}": f"{full} {DRAW % (name, LOW[name], 1)}" for name in precisions}
    arms |= {f"nvfp4, weights every {age}": f"{full} {DRAW % ('nvfp4', LOW['nvfp4'], age)}" for age in ages}
    questions = {
        "Does a low-precision tree cost anything?": tuple(("drawn in full", label) for label in list(arms)[1:])
    }
    return Group(arms, 20_000, 10, questions, evals=1, **options)


def wide(world: str) -> Group:
    """Return the preset on 10 steps with wider trees and deeper ones."""
    full = factorial(world)["diffrl"].replace("rollout.steps=4", "rollout.steps=10")
    tree = " rollout.tree={roots: 1, branches: %s, splits: %s, correlation: 4.0}"
    shapes = {
        "4 x 4": (4, [0, 4]),
        "6 x 6": (6, [0, 4]),
        "8 x 4": ([8, 4], [0, 4]),
        "4 x 4 x 2": ([4, 4, 2], [0, 3, 6]),
    }
    arms = {label: full + tree % sizes for label, sizes in shapes.items()}
    questions = {"Does a wider tree pay?": tuple(("4 x 4", label) for label in list(arms)[1:])}
    return Group(arms, 20_000, 10, questions, evals=1)


def nodes(world: str) -> Group:
    """Return the preset with a deep tree on 10 steps, of whose 21 nodes all or eight train."""
    deep = wide(world).arms["4 x 4 x 2"]
    arms = {"all nodes": deep}
    arms |= {
        f"8 nodes, {by}": f"{deep} objective.nodes={{keep: 8, by: {by}}}" for by in ("contrast", "direction", "random")
    }
    questions = {
        "Does a subset of the nodes pay?": tuple(("all nodes", label) for label in list(arms)[1:]),
        "Is it the choice?": (("8 nodes, random", "8 nodes, contrast"), ("8 nodes, random", "8 nodes, direction")),
    }
    return Group(arms, 20_000, 10, questions, evals=1)


def chain(world: str) -> Group:
    """Return the chain of the papers, the same with one part exchanged, and others, at published prices."""
    folder, known = FOLDERS[world], factorial(world)
    common = f"rollout.steps=4 prompts.per_iteration=8 {UNSEEN} track.trees=null train.warmup_updates=2"
    whole = f"{folder}/chain.yaml {common} rollout.solver=ab2 rollout.explore.audit=0 train.learning_rate=1.5e-4"
    branch = f"{folder}/branch_grpo.yaml {common} train.learning_rate=1.5e-4"
    arms = {
        "chain": whole,
        "chain, single leaves": f"{whole} rollout.explore.select=best_worst",
        "chain, random leaves": f"{whole} rollout.explore.select=random",
        "chain, explored in full": f"{whole} rollout.explore.precision=training rollout.explore.engine=auto",
        "chain, fused credit": f"{whole} credit={{reward: fused, normalise: depth}}",
        "chain without a pool": known["tree, grpo, turning points"],
        "flow_grpo": known["chains, grpo"],
        "branch_grpo": f"{branch} rollout.tree={{roots: 1, branches: [4, 2, 2], splits: [0, 1, 2], correlation: 4.0}}",
        "sol_rl": f"{known['chains, nft']} {EXPLORE % 'best_worst'}",
        "diffrl": known["diffrl"],
    }
    labels = list(arms)
    questions = {
        "What does the chain lose without a part?": tuple(("chain", label) for label in labels[1:6]),
        "Does the chain pay?": tuple((label, "chain") for label in labels[6:]),
    }
    return Group(arms, 20_000, 5, questions, "b200-nvfp4", evals=1)


def regimes(world: str) -> Group:
    """Return the preset, and the same drawn with guidance and without a pull; both are measured with guidance too."""
    known = factorial(world)
    guided = "rollout.guidance_scale=3.0 objective={kind: tilt, kl: 0.0} train.learning_rate=1.5e-4"
    arms = {"drawn without guidance, pulled": known["diffrl"], "drawn with guidance": f"{known['diffrl']} {guided}"}
    questions = {
        "Without guidance, which has learned more?": (("drawn with guidance", "drawn without guidance, pulled"),)
    }
    return Group(arms, 20_000, 6, questions, evals=1, guidance=(3.0,))


LATER = ("mix_grpo", "dance_grpo", "tp_grpo", "branch_grpo_mix", "diffrl_nft")
"""Methods that were searched after the others, and measured at one budget."""


def equally_tuned(world: str, regime: str, budget: int, seeds: int, searched: int = BUDGET) -> Group:
    """Return each method at the best settings of a search that was as long for all (`scripts/tune_methods.py`).

    Searched with so many evaluations: other budgets take the same settings, and a schedule that ends with them.
    """
    trials = read_trials(trials_file(world, regime, searched))
    arms = {
        method: f"{space.settings(best(method, trials)[0], world, regime)} {UNSEEN}"
        for method, space in SPACES.items()
        if any(trial["method"] == method for trial in trials) and (budget == searched or method not in LATER)
    }
    questions = {"Does diffrl pay, all tuned alike?": tuple((label, "diffrl") for label in arms if label != "diffrl")}
    return Group(arms, budget, seeds, questions, evals=1, own_noise=True)


def dealt_out(world: str) -> Group:
    """Return the preset diffrl with its nodes in one update and dealt out to four, on the seeds of `equally_tuned`."""
    space = SPACES["diffrl"]
    one = f"{space.settings(space.start, world, 'plain')} {UNSEEN}"
    arms = {
        "diffrl, one update": one,
        "diffrl, four updates": f"{one} train.updates_per_iteration=4 train.learning_rate=1.5e-4",
    }
    questions = {"Do more updates pay?": (("diffrl, four updates", "diffrl, one update"),)}
    return Group(arms, 20_000, 6, questions, evals=1, own_noise=True)


def without_a_pull(world: str) -> Group:
    """Return the preset diffrl with its pull to the guided start and without, on three times the evaluations."""
    preset = f"{SPACES['diffrl'].settings(SPACES['diffrl'].start, world, 'plain')} {UNSEEN}"
    arms = {"diffrl, preset": preset, "no pull": f"{preset} objective={{kind: tilt, kl: 0.0}}"}
    return Group(arms, 60_000, 3, {"Does the pull pay?": (("no pull", "diffrl, preset"),)}, evals=1, own_noise=True)


PRESETS = {
    "tilt": "tree_tilt",
    "chains, art": "art",
    "nft": "diffusion_nft",
    "chains, nft": "diffusion_nft",
    "chains, awm": "awm",
    "chains, crd": "crd",
    "chains, dgpo": "dgpo",
    "chains, grpo": "flow_grpo",
    "guidance distilled": "guidance distilled, no reward",
    **{name: name for name in ("diffrl", "art", "awm", "flow_grpo", "branch_grpo", "sol_rl", "chain", *LATER)},
}
"""Arms of any group, and the preset that each is of."""

WORDS = {label: arm for label, arm in factorial("words").items() if not label.endswith("ode")}
PRICES = (1.0, 0.5, 0.25, 0.1)
POOLS = {f"pool-{price:g}": price for price in PRICES}
GROUPS = {
    "shapes": Group(factorial("shapes"), 20_000, 10, _answered(QUESTIONS, factorial("shapes"))),
    "words": Group(WORDS, 20_000, 10, _answered(QUESTIONS, WORDS), evals=1),
    "parts": parts("shapes"),
    "moving": moving(),
    "draw-shapes": low_precision_trees("shapes", 10, ("nvfp4", "fp8", "int8", "bfloat16")),
    "draw-words": low_precision_trees("words", 10, ("nvfp4", "fp8")),
    "draw-priced-shapes": low_precision_trees("shapes", 10, ("nvfp4", "fp8"), prices="b200-nvfp4,fp8=0.65"),
    "draw-priced-words": low_precision_trees("words", 10, ("nvfp4",), prices="b200-nvfp4"),
    "draw-4-shapes": low_precision_trees("shapes", 4, ("nvfp4", "fp8", "int8", "bfloat16"), (2, 4, 8)),
    "wide-shapes": wide("shapes"),
    "nodes-shapes": nodes("shapes"),
    "chain-shapes": chain("shapes"),
    "regimes-shapes": regimes("shapes"),
    "tuned-guided-shapes": equally_tuned("shapes", "guided", 20_000, 6),
    "tuned-plain-shapes": equally_tuned("shapes", "plain", 20_000, 6),
    "tuned-plain-words": equally_tuned("words", "plain", 20_000, 6),
    "tuned-plain-shapes-6k": equally_tuned("shapes", "plain", 6_000, 6),
    "tuned-plain-shapes-60k": equally_tuned("shapes", "plain", 60_000, 6),
    "tuned-plain-words-6k": equally_tuned("words", "plain", 6_000, 6),
    "tuned-60k-shapes": equally_tuned("shapes", "plain", 60_000, 6, searched=60_000),
    "updates-shapes": dealt_out("shapes"),
    "pull-shapes-60k": without_a_pull("shapes"),
    **{name: pool(price) for name, price in POOLS.items()},
}
BUDGETS = {
    "shapes": ("tuned-plain-shapes-6k", "tuned-plain-shapes", "tuned-plain-shapes-60k"),
    "words": ("tuned-plain-words-6k", "tuned-plain-words"),
}
"""By world: groups of methods that were tuned alike, by evaluations of training."""
GUIDED = {"shapes": 0.374, "words": 0.506}
"""By world: strict score on `report` of the model before alignment with guidance of 3 (tables of docs/results.md)."""
