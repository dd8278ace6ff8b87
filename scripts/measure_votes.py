"""Train on scripted votes, and measure how often the voter then prefers the model to what it was.

    python scripts/measure_votes.py --world shapes --voter colourfulness [--loss sigmoid] [--seeds 3] [KEY=VALUE ...]

The voter is shown two of the base's images of a training prompt at a time, prefers the one that its reward ranks
higher, and errs in one vote of ten. Wins are counted on the split `report`, of the same noise; an equal score is half
of one. Settings were chosen on `tune`. Rows are appended to docs/measured/votes.jsonl, and none is measured twice.
"""

import argparse
import json
import random
import shutil
from pathlib import Path

from measuring.spaces import read_trials

import diffrl
from diffrl.data.prompts import load_prompts
from diffrl.display import markdown_table
from diffrl.records import Prompt
from diffrl.statistics import mean_estimate

RECORD = Path(__file__).parents[1] / "docs" / "measured" / "votes.jsonl"
BASES = {"shapes": "assets/tiny-sd3", "words": "assets/tiny-words"}
STEPS, SHOWN, PROMPTS = 10, 20, 400


def scores(images: list, prompts: list[Prompt], voter: str) -> list[float]:
    """Return what the voter's reward gives."""
    texts, beside = [prompt.text for prompt in prompts], [prompt.metadata for prompt in prompts]
    return [row[voter] for row in diffrl.score(images, texts, voter, metadata=beside)]


def make_votes(world: str, voter: str, count: int, wrong: float, seed: int, folder: Path) -> Path:
    """Write a list of pairs with their images; the same for the same arguments."""
    rng = random.Random(seed)
    prompts = load_prompts(f"{world}:train")
    rng.shuffle(prompts)
    folder.mkdir(parents=True)
    rows: list[dict] = []
    for start in range(0, len(prompts), SHOWN):
        part = prompts[start : start + SHOWN]
        texts = [prompt.text for prompt in part]
        images = diffrl.generate(BASES[world], texts, per_prompt=4, seed=seed * 1000 + start, steps=STEPS)
        shown = [prompt for prompt in part for _ in range(4)]
        values = scores(images, shown, voter)
        for left in range(0, len(images), 2):
            pair = sorted((left, left + 1), key=lambda i: -values[i])
            if values[left] == values[left + 1] or len(rows) == count:
                continue
            if rng.random() < wrong:
                pair.reverse()
            names = [f"{len(rows):04}-{side}.png" for side in ("winner", "loser")]
            for name, i in zip(names, pair, strict=True):
                images[i].save(folder / name)
            rows.append({"prompt": shown[left].text, **shown[left].metadata, "winner": names[0], "loser": names[1]})
        if len(rows) == count:
            break
    if len(rows) < count:
        raise SystemExit(f"{world} has no more than {len(rows)} votes. Lower --votes.")
    listed = folder / "pairs.jsonl"
    listed.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return listed


def measure(arguments: argparse.Namespace, seed: int) -> dict:
    """Train one seed on votes of its own, and count the wins."""
    a = arguments
    folder = a.out / f"{a.world}-{a.voter}-{a.loss}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    pairs = make_votes(a.world, a.voter, a.votes, a.wrong, seed, folder / "votes")
    recipe = f"configs/{Path(BASES[a.world]).name}/dpo.yaml"
    overrides = [f"run.dir={folder}", f"run.seed={seed}", f"objective.loss={a.loss}", "run.eval_every=null"]
    overrides += [f"prompts.train={pairs}@train", f"prompts.eval={pairs}@tune", "eval.samples=100", *a.override]
    run = diffrl.train(diffrl.load_config(recipe, overrides), quiet=True)
    prompts = load_prompts(f"{a.world}:{a.split}")[: a.prompts]
    texts = [prompt.text for prompt in prompts]
    before, after = (
        scores(diffrl.generate(source, texts, seed=7, steps=STEPS), prompts, a.voter)
        for source in (BASES[a.world], run)
    )
    wins = [0.5 + 0.5 * ((new > old) - (new < old)) for old, new in zip(before, after, strict=True)]
    last = run.metrics()[-1]
    return {
        **settings(a),
        "seed": seed,
        "wins": sum(wins) / len(wins),
        "before": sum(before) / len(before),
        "after": sum(after) / len(after),
        "pair_accuracy": last.get("pairs/accuracy"),
    }


def settings(a: argparse.Namespace) -> dict:
    """Return what tells a measurement from others, but its seed."""
    return {
        "world": a.world,
        "voter": a.voter,
        "loss": a.loss,
        "votes": a.votes,
        "wrong": a.wrong,
        "split": a.split,
        "prompts": a.prompts,
        "override": " ".join(a.override),
    }


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=BASES, default="shapes")
    parser.add_argument("--voter", default="colourfulness", help="Reward that votes.")
    parser.add_argument("--loss", choices=("sigmoid", "sft"), default="sigmoid")
    parser.add_argument("--votes", type=int, default=500)
    parser.add_argument("--wrong", type=float, default=0.1, help="Share of votes that are wrong.")
    parser.add_argument("--split", choices=("tune", "report"), default="report")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="Held-out prompts that the wins are counted on.")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--out", type=Path, default=Path("votes"), help="Directory of votes and runs.")
    parser.add_argument("override", nargs="*", help="KEY=VALUE of the recipe.")
    arguments = parser.parse_args()
    known = [{key: row[key] for key in (*settings(arguments), "seed")} for row in read_trials(arguments.record)]
    for seed in range(arguments.seeds):
        if {**settings(arguments), "seed": seed} not in known:
            row = measure(arguments, seed)
            with arguments.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    rows = [r for r in read_trials(arguments.record) if {k: r[k] for k in settings(arguments)} == settings(arguments)]
    wins = mean_estimate([row["wins"] for row in rows])
    columns = ("seed", "wins", "before", "after")
    print(markdown_table([{c: str(row[c]) if c == "seed" else f"{row[c]:.3f}" for c in columns} for row in rows]))
    print(f"wins {wins.mean:.3f}" + (f" ({wins.low:.3f} to {wins.high:.3f})" if wins.low is not None else ""))


if __name__ == "__main__":
    main()
