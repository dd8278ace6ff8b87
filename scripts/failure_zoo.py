"""Break runs in known ways, and measure what names them and what cures them.

    python scripts/failure_zoo.py [--seeds 3] [--jobs 2] [--out zoo]

Each fault is trained on shapes with each cure and seed; the held-out strict score is of the split `tune`. Evaluations
are kept in docs/measured/failures/shapes.jsonl; an interrupted measurement goes on with the runs that it lacks.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from measuring.spaces import read_trials

import diffrl
from diffrl.display import markdown_table
from diffrl.errors import GuardStop
from diffrl.tracking.health import AILMENTS, METRICS, health_of
from diffrl.tracking.metrics import read_metrics

RECORD = Path(__file__).parents[1] / "docs" / "measured" / "failures" / "shapes.jsonl"
RECIPE = "configs/tiny-sd3/diffrl.yaml"
EVERY = 5
COMMON = (
    "run.iterations=30", f"run.eval_every={EVERY}", f"run.checkpoint_every={EVERY}", "run.keep_checkpoints=null",
    "track.trees=null",
)  # fmt: skip
REWARD = "shapes_strict"
FAULTS = {
    "none": [],
    "rate 8 times too high": ["train.learning_rate=2.4e-3"],
    "colourfulness alone": ["rewards=[{name: colourfulness}]"],
    "sharpness alone": ["rewards=[{name: sharpness}]"],
    "colour-blind judge": ["rewards=[{name: 'measuring.faulty:ColourBlind'}]"],
    "saturated scorer": ["rewards=[{name: 'measuring.faulty:Saturated'}]"],
    "two samples of one prompt": [
        "prompts.per_iteration=1", "rollout.tree={roots: 1, branches: 2, splits: [0], correlation: 4.0}",
    ],
    "rate 1,000 times too low": ["train.learning_rate=3.0e-7"],
}  # fmt: skip
CURES = {
    "nothing": [],
    "guards.recover": ["guards.recover={times: 3, rate: 0.5}"],
    "pull of 0.5 to the base": ["objective.kl=0.5", "objective.kl_guidance=1.0"],
    "kl_target, the distance at the start": ["objective.kl_target=0.68"],
}
TASK = "{name: shapes, weight: 0.5}, {name: shapes_strict, weight: 0.5}"
MESSAGE = "what the message says"
FIFTH = f"{MESSAGE}, and a fifth of its weight"
ADVICE = {  # what is tried against one fault alone; another rate is the run without the fault
    "rate 8 times too high": {"guards.recover, a quarter of the rate": ["guards.recover={times: 3, rate: 0.25}"]},
    "colourfulness alone": {
        MESSAGE: [f"rewards=[{{name: colourfulness, scale: 50}}, {TASK}]"],
        FIFTH: [f"rewards=[{{name: colourfulness, weight: 0.2, scale: 50}}, {TASK}]"],
    },
    "sharpness alone": {
        MESSAGE: [f"rewards=[{{name: sharpness, scale: 5000}}, {TASK}]"],
        FIFTH: [f"rewards=[{{name: sharpness, weight: 0.2, scale: 5000}}, {TASK}]"],
    },
    "colour-blind judge": {MESSAGE: [f"rewards=[{{name: 'measuring.faulty:ColourBlind'}}, {TASK}]"]},
    "saturated scorer": {MESSAGE: [f"rewards=[{{name: 'measuring.faulty:Saturated'}}, {TASK}]"]},
    "two samples of one prompt": {MESSAGE: ["train.learning_rate=3.0e-5"]},
}
NAMES = (*AILMENTS, "blind", "stuck")


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="Runs at once.")
    parser.add_argument("--out", type=Path, default=Path("zoo"), help="Directory of the runs.")
    arguments = parser.parse_args()
    known = {(run["fault"], run["cure"], run["seed"]) for run in read_trials(RECORD)}
    asked = [(f, c, s) for s in range(arguments.seeds) for f in FAULTS for c in cures(f) if (f, c, s) not in known]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for done in as_completed([pool.submit(measure, *one, arguments.out) for one in asked]):
            RECORD.parent.mkdir(parents=True, exist_ok=True)
            with RECORD.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done.result()) + "\n")
    print(markdown_table(list(rows(read_trials(RECORD))), left=2))


def cures(fault: str) -> dict[str, list[str]]:
    """Return what is tried against a fault, and the overrides of each."""
    return CURES | ADVICE.get(fault, {})


def measure(fault: str, cure: str, seed: int, out: Path) -> dict:
    """Train one run, and return what its evaluations say."""
    name = f"{list(FAULTS).index(fault)}-{list(cures(fault)).index(cure)}-{seed}"
    shutil.rmtree(out / name, ignore_errors=True)
    overrides = [*COMMON, *FAULTS[fault], *cures(fault)[cure], f"run.seed={seed}", f"run.dir={out}", f"run.name={name}"]
    with suppress(GuardStop):  # a run that ends itself has written down why
        diffrl.train(diffrl.load_config(RECIPE, overrides), quiet=True)
    return record(fault, cure, seed, out / name)


def record(fault: str, cure: str, seed: int, run: Path) -> dict:
    """Return what the evaluations of a run say."""
    kept = {"iteration", f"held_out/{REWARD}", "sentinel/alarms", "sentinel/back_to", *(f"sentinel/{n}" for n in NAMES)}
    evaluations = [row for row in read_metrics(run / METRICS) if row.get(f"held_out/{REWARD}") is not None]
    return {
        "fault": fault,
        "cure": cure,
        "seed": seed,
        "evaluations": [{key: value for key, value in row.items() if key in kept} for row in evaluations],
    }


def rows(runs: list[dict]) -> Iterator[dict[str, str]]:
    """Yield a row a fault and cure: the first names, and the scores of the end and of what is exported."""
    for fault in FAULTS:
        for cure in cures(fault):
            mine = [run["evaluations"] for run in runs if (run["fault"], run["cure"]) == (fault, cure)]
            if not mine:
                continue
            yield {
                "fault": fault if cure == "nothing" else "",
                "cure": cure,
                "named": ", ".join(map(first_name, mine)),
                "last": scores([run[-1][f"held_out/{REWARD}"] for run in mine]),
                "exported": scores([exported(run) for run in mine]),
                "went back": ", ".join(str(sum("sentinel/back_to" in row for row in run)) for run in mine),
            }


def first_name(rows: list[dict]) -> str:
    """Return what a run was called first, and at which evaluation; "healthy" if nothing ever spoke against it."""
    named = ((at, name) for at, row in enumerate(rows) for name in NAMES if row.get(f"sentinel/{name}"))
    return next((f"{name} at {at}" for at, name in named), "healthy")


def exported(rows: list[dict]) -> float:
    """Return the score of the newest healthy checkpoint; of the model before training where none is healthy."""
    step = health_of(rows, REWARD, lower=False).healthy([row["iteration"] for row in rows])
    return next(row[f"held_out/{REWARD}"] for row in rows if row["iteration"] == (step or 0))


def scores(values: list[float]) -> str:
    """Write a mean and its values."""
    return f"{statistics.fmean(values):.3f} ({' '.join(f'{value:.3f}' for value in values)})"


if __name__ == "__main__":
    main()
