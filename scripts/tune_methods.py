"""Tune every method with equal effort: one search space each, as many trials, one sampler (Optuna's TPE).

    python scripts/tune_methods.py --world shapes --regime guided [--method nft] [--trials 12] [--out tuning]
    python scripts/tune_methods.py --world shapes --regime plain --evaluations 60000

Trials of one seed are scored on the split `tune` after 20,000 evaluations; the best two go through two more seeds.
What is tried is kept in docs/measured/tuning/REGIME-WORLD[-BUDGET].jsonl, and an interrupted search goes on with
the trials that it would have made: the sampler's seed is the number of the trial. Spaces: measuring/spaces.py.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from measuring.spaces import BUDGET, REGIMES, SPACES, Space, read_trials, trials_file
from rich.console import Console

from diffrl.errors import DiffrlError
from diffrl.studies.compare import CompareRequest, collect, compare

try:
    import optuna
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState, create_trial
except ImportError:
    print("scripts/tune_methods.py needs optuna. Install it: pip install -e '.[dev]'", file=sys.stderr)
    sys.exit(2)

SEEDS = (100, 101, 102)
AT_ONCE = 2
"""Trials that are asked for before either is told: part of the protocol, whatever the machine's cores."""


def main() -> None:
    """Search each method's space, then confirm its best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=("shapes", "words"), required=True)
    parser.add_argument("--regime", choices=REGIMES, required=True)
    parser.add_argument(
        "--evaluations", type=int, default=BUDGET, help="Of a trial; each budget is a search of its own."
    )
    parser.add_argument("--method", action="append", choices=SPACES, help="May be given several times. Default: all.")
    parser.add_argument("--trials", type=int, default=12, help="Of each method, with one seed.")
    parser.add_argument("--confirm", type=int, default=2, help="How many of the best get two more seeds.")
    parser.add_argument("--jobs", type=int, help="Runs at once. Default: one a core.")
    parser.add_argument("--out", type=Path, default=Path("tuning"), help="Directory of the runs.")
    arguments = parser.parse_args()
    if not 1 <= arguments.confirm <= arguments.trials:
        parser.error(f"--confirm must be from 1 to --trials. Got {arguments.confirm} of {arguments.trials}.")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        for method in arguments.method or SPACES:
            tune(method, arguments)
    except DiffrlError as error:
        parser.error(str(error))


def tune(method: str, arguments: argparse.Namespace) -> None:
    """Make a method's missing trials, and keep each batch as soon as it is scored."""
    path, space = trials_file(arguments.world, arguments.regime, arguments.evaluations), SPACES[method]
    while True:
        mine = [trial for trial in read_trials(path) if trial["method"] == method]
        asked = next_trials(space, mine, arguments.trials, arguments.confirm)
        if not asked:
            return
        out = arguments.out / path.stem / f"{method}-{len(mine):02}"
        scores = run(space, asked, out, arguments)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            for number, ((choices, seed), score) in enumerate(zip(asked, scores, strict=True), len(mine)):
                row = {"method": method, "number": number, "seed": seed, "choices": choices, "score": score}
                file.write(json.dumps(row) + "\n")
                print(f"{method} {number}: {score} with {choices}, seed {seed}", flush=True)


def next_trials(space: Space, made: list[dict], trials: int, confirm: int) -> list[tuple[dict[str, str], int]]:
    """Return the next choices and seeds to run; none when all have been."""
    searched = [trial for trial in made if trial["seed"] == SEEDS[0]]
    if len(searched) < trials:
        return [(choices, SEEDS[0]) for choices in suggest(space, searched, min(AT_ONCE, trials - len(searched)))]
    ranked = sorted(searched, key=lambda trial: trial["score"] if trial["score"] is not None else -1.0, reverse=True)
    tops = [trial["choices"] for trial in ranked[:confirm]]
    done = [(trial["choices"], trial["seed"]) for trial in made]
    left = [(top, seed) for seed in SEEDS[1:] for top in tops if (top, seed) not in done]
    return [one for one in left if one[1] == left[0][1]][:AT_ONCE]  # runs beside each other are pairs


def suggest(space: Space, searched: list[dict], count: int) -> list[dict[str, str]]:
    """Return the sampler's next choices: the start first, then TPE's, none of them tried before."""
    tried = [trial["choices"] for trial in searched]
    fresh: list[dict[str, str]] = [] if searched else [dict(space.start)]
    spaces = {knob: CategoricalDistribution(list(choices)) for knob, choices in space.knobs.items()}
    number = len(searched)
    while len(fresh) < count:
        sampler = optuna.samplers.TPESampler(seed=number, n_startup_trials=4, multivariate=True, constant_liar=True)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in searched:
            score, choices = trial["score"], {**space.start, **trial["choices"]}  # a knob may have come later
            state = TrialState.FAIL if score is None else TrialState.COMPLETE
            study.add_trial(create_trial(params=choices, distributions=spaces, value=score, state=state))
        choices = study.ask(spaces).params
        number += 1000 if choices in tried + fresh else 1  # a draw that repeats is made again with another seed
        if choices not in tried + fresh:
            fresh.append(choices)
    return fresh


def run(space: Space, asked: list, out: Path, arguments: argparse.Namespace) -> list[float | None]:
    """Train some trials and return their scores on `tune`; None for one that broke off."""
    shutil.rmtree(out, ignore_errors=True)
    arms = [
        f"trial {n}: {space.settings(choices, arguments.world, arguments.regime)} run.seed={seed}"
        for n, (choices, seed) in enumerate(asked)
    ]
    budget = f"evaluations={arguments.evaluations}"
    request = CompareRequest(out, configs=arms, budget=budget, seeds=1, evals=1, jobs=arguments.jobs, no_report=True)
    try:
        compare(request, Console())
    except DiffrlError as error:
        print(f"{out}: {error}", flush=True)
    scores: dict[str, float] = {arm.label: arm.runs[0].curve[-1].score for arm in collect(out).arms if arm.runs}
    if not scores:
        raise DiffrlError(f"No trial of {out} has finished: this is no fault of one setting. Look into its logs.")
    return [scores.get(f"trial {n}") for n in range(len(asked))]


if __name__ == "__main__":
    main()
