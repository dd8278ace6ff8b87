"""Comparisons: what is asked for, how it becomes runs of equal cost, and how one goes on after a stop."""

from __future__ import annotations

import json
import math
import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from diffrl.cli import main
from diffrl.config import load_config
from diffrl.cost.plan import make_plan
from diffrl.errors import ConfigError
from diffrl.studies.compare import collect, processes, tables
from diffrl.studies.compare.arguments import parse_budget, parse_candidate, parse_candidates


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def in_order(*arguments: object) -> tuple[object, ...]:
    """A comparison whose runs follow each other."""
    return ("compare", *arguments, "--jobs", 1)


def refusal(capsys, *arguments: object) -> str:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and "Traceback" not in captured.err + captured.out
    return captured.err


@pytest.fixture
def config(run_settings, tmp_path) -> Path:
    run_settings["eval"]["samples"] = 5
    path = tmp_path / "base.yaml"
    path.write_text(yaml.safe_dump(run_settings))
    return path


@pytest.fixture
def cost(config) -> float:
    """Evaluations of one iteration of the base configuration."""
    return make_plan(load_config(config)).iteration_cost


@pytest.fixture
def trained(monkeypatch):
    """Runs that take no time: an iteration takes 0.25 s, 0.5 s with two roots. Their names, in order, and settings.

    No figures are drawn, which takes longer than the rest: test_compare_tables.py and _pairs.py ask for them.

    `trained.failing` holds names that fail; nothing else does. `trained.measured` are the arguments of evaluations.
    """

    class Trained(list):
        failing: set[str] = set()
        measured: list[list[str]] = []

    calls = Trained()
    calls.measured = []

    def command(self, arguments, log):
        if arguments[0] == "evaluate":
            calls.measured.append(arguments)
            return measure(arguments, log)
        resumed = arguments[1] == "--resume"
        config = load_config(Path(arguments[2]) / "config.yaml" if resumed else arguments[1])
        path = Path(config.run.dir) / config.run.name
        name = f"{path.parent.name}/{path.name}"
        calls.append(f"{name} resumed" if resumed else name)
        log.open("a").write(f"training {name}\n")
        if name in calls.failing:
            log.open("a").write("error: the moon is in the way\n")
            return 2
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
        seconds = 0.5 if config.rollout.tree.roots == 2 else 0.25
        rows = []
        for i in range(config.run.iterations + 1):
            wall = sum([0, 9, 0.6 * seconds, seconds, 1.4 * seconds, *[seconds] * i][: i + 1])  # 9 s to warm up
            row = {"iteration": i, "cost/evaluations": i * 10, "cost/seconds": wall}
            rows.append(row | ({"held_out/shapes_strict": i / 100} if config.run.evaluates_after(i) else {}))
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        summary = {"iterations": config.run.iterations, "updates": config.run.iterations, "peak_memory_bytes": 2**30}
        (path / "summary.json").write_text(json.dumps(summary))
        return 0

    def measure(arguments, log):
        path = Path(arguments[arguments.index("--run") + 1])
        log.open("a").write("measuring\n")
        if f"{path.parent.name}/{path.name} measured" in calls.failing:
            return 2
        config, source = load_config(path / "config.yaml"), arguments[arguments.index("--prompts") + 1]
        scales = [float(value) for flag, value in pairwise(arguments) if flag == "--guidance"]
        rows = [("base", 0)] * ("--base" in arguments) + [("aligned", config.run.iterations)]
        with (path / "evaluations.jsonl").open("a") as file:
            for weights, iteration in rows:
                for scale in scales:
                    row = {"weights": weights, "iteration": iteration, "digest": "0", "prompts": source}
                    row |= {"guidance_scale": scale, "n": config.eval.samples, "failed": 0, "steps": config.eval.steps}
                    row |= {"solver": config.eval.solver, "noise_seed": config.eval.seed}
                    if "--variety" in arguments:
                        row["variety"] = {"diversity": 0.25, "distance": 0.5 * (weights == "aligned")}
                    score = 0.2 * (weights == "aligned") + config.run.seed / 100 + scale / 1000
                    file.write(json.dumps(row | {"means": {"shapes_strict": score}}) + "\n")
        return 0

    monkeypatch.setattr(processes.Processes, "run", command)
    monkeypatch.setattr(tables, "draw", lambda *args: None)
    monkeypatch.setattr(tables, "draw_differences", lambda *args: None)
    return calls


@pytest.mark.parametrize(
    ("text", "label", "path", "overrides"),
    [
        ("configs/a.yaml run.seed=1  b.c=2", "a run.seed=1 b.c=2", "configs/a.yaml", ("run.seed=1", "b.c=2")),
        ("my way: configs/a.yaml b.c=2", "my way", "configs/a.yaml", ("b.c=2",)),
        ("a.yaml b.c={d: 2, e: 3} f=1", "a b.c={d: 2, e: 3} f=1", "a.yaml", ("b.c={d: 2, e: 3}", "f=1")),
        ("x: my folder/a.yaml b.c={d: 2}", "x", "my folder/a.yaml", ("b.c={d: 2}",)),
    ],
)
def test_configuration_arguments(text, label, path, overrides):
    found = parse_candidate(text)
    assert (found.label, found.path, found.overrides) == (label, path, overrides)
    assert parse_candidate(f"{'x' * 300}: a.yaml").folder == "x" * 80


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a.yaml", "b/a.yaml"], "unique"),
        (["a b: a.yaml", "a/b: b.yaml"], "unique"),
        (["a.yaml run.iterations=3"], "run.iterations is decided"),
        (["b.c=2 a.yaml"], "must be"),
        (["..: a.yaml"], "must be"),
        ([], "at least one"),
    ],
)
def test_arguments_that_are_refused(texts, expected):
    with pytest.raises(ConfigError, match=expected):
        parse_candidates(texts)


@pytest.mark.parametrize("text", [None, "200000", "evaluations=", "hours=2", "seconds=0", "seconds=nan"])
def test_budgets_that_are_refused(text):
    with pytest.raises(ConfigError, match="--budget must be"):
        parse_budget(text)


def test_budgets():
    assert parse_budget("evaluations=200_000").amount == 200000 and parse_budget("seconds=1e2").kind == "seconds"
    assert [parse_budget("seconds=10").iterations(unit) for unit in (3, 2.5, 11)] == [3, 4, 0]


def test_equal_evaluations(config, cost, trained, tmp_path):
    out = tmp_path / "out"
    window = f"window: {config} rollout.stochastic.size=1"
    other = make_plan(load_config(config, ["rollout.stochastic.size=1"])).iteration_cost
    budget = 10 * cost + cost / 2
    assert run("compare", config, "--budget", f"evaluations={budget}", "--out", out, "--dry-run") == 0
    assert not trained and not out.exists()
    assert run(*in_order(config, window, "--budget", f"evaluations={budget}", "--seeds", 2, "--out", out)) == 0
    assert trained == ["base/seed-0", "window/seed-0", "base/seed-1", "window/seed-1"]
    for folder, iterations, seed in (("base", 10, 3), ("window", math.floor(budget / other), 3)):
        for number in range(2):
            made = load_config(out / folder / f"seed-{number}" / "config.yaml")
            assert (made.run.iterations, made.run.seed) == (iterations, seed + number)
            assert 5 <= made.run.evaluations - 1 <= 8
            assert made.rollout.stochastic.size == (1 if folder == "window" else 3)
    state = json.loads((out / "state.json").read_text())
    assert state["budget"] == {"kind": "evaluations", "amount": budget} and state["seeds"] == 2
    assert [entry["iterations"] for entry in state["configurations"]] == [10, math.floor(budget / other)]
    assert {"table.md", "results.json"} <= {path.name for path in out.iterdir()}


def test_equal_seconds(config, trained, tmp_path, capsys):
    config.write_text(config.read_text().replace("iterations: 3", "iterations: 30"))
    two = f"two: {config} rollout.tree.roots=2 train.warmup_updates=9"  # longer than the timed run
    arguments = ("compare", config, two, "--out", tmp_path / "o")
    assert run(*arguments, "--budget", "seconds=10", "--seeds", 1) == 0
    assert trained == ["base/probe", "two/probe", "base/seed-0", "two/seed-0"]  # its first iteration, 9 s, left out
    state = json.loads((tmp_path / "o" / "state.json").read_text())
    assert [entry["iteration_seconds"] for entry in state["configurations"]] == pytest.approx([0.25, 0.5])
    assert [entry["iterations"] for entry in state["configurations"]] == [40, 20]
    assert not (tmp_path / "o" / "base" / "probe").exists()
    assert run(*arguments, "--budget", "seconds=10", "--seeds", 2) == 0
    assert trained[4:] == ["base/seed-1", "two/seed-1"]  # timed once


def test_a_budget_too_small_says_what_is_needed(config, cost, trained, tmp_path, capsys):
    message = refusal(capsys, "compare", config, "--budget", f"evaluations={cost - 1}", "--out", tmp_path / "o")
    assert f"--budget evaluations={cost:.0f}" in message and not trained
    assert "--budget seconds=1 " in refusal(
        capsys, "compare", config, "--budget", "seconds=0.2", "--out", tmp_path / "o"
    )
    assert run("compare", config, "--budget", "seconds=1", "--seeds", 1, "--out", tmp_path / "o") == 0  # mended


@pytest.mark.parametrize(
    ("override", "option", "expected"),
    [
        ("train.warmup_updates=5", (), "train.warmup_updates"),
        ("rollout.steps=7", ("--metric", "pickscore"), "--metric"),
        ("eval.rewards=[{name: shapes}]", (), "shapes_strict"),
    ],
)
def test_problems_name_their_configuration(config, cost, trained, override, option, expected, tmp_path, capsys):
    arguments = ("compare", config, f"mine: {config} {override}", "--budget", f"evaluations={2 * cost}", *option)
    message = refusal(capsys, *arguments, "--out", tmp_path / "o")
    assert "mine" in message and expected in message and not trained


@pytest.mark.long
def test_what_is_finished_stays_and_what_is_begun_goes_on(config, cost, trained, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = in_order(config, f"b: {config} rollout.steps=7", "--budget", f"evaluations={9 * cost}", "--out", out)
    assert run(*arguments, "--seeds", 2) == 0
    (out / "base" / "seed-1" / "summary.json").unlink()
    for path in sorted((out / "b" / "seed-0").iterdir()):
        path.unlink()
    (out / "b" / "seed-0").rmdir()
    kept = {path: path.stat().st_mtime_ns for name in ("base/seed-0", "b/seed-1") for path in (out / name).iterdir()}
    trained.clear()
    assert run(*arguments, "--seeds", 2) == 0
    assert trained == ["b/seed-0", "base/seed-1 resumed"]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    trained.clear()
    assert run(*arguments, f"more: {config} rollout.steps=6", "--seeds", 3) == 0  # it may grow
    assert trained == ["more/seed-0", "more/seed-1", "base/seed-2", "b/seed-2", "more/seed-2"]


def test_a_comparison_does_not_change(config, cost, trained, tmp_path, capsys):
    out, budget = tmp_path / "out", ("--budget", f"evaluations={9 * cost}")
    first = ("compare", f"a: {config}", f"b: {config} rollout.steps=7")
    assert run(*first, *budget, "--seeds", 2, "--out", out) == 0
    trained.clear()
    for arguments, expected in (
        ((*first, "--budget", f"evaluations={8 * cost}", "--seeds", 2), "--budget was"),
        ((*first, *budget, "--seeds", 2, "--evals", 3), "--evals was 8"),
        ((*first, *budget, "--seeds", 1), "--seeds was 2"),
        ((*first[:2], *budget, "--seeds", 2), "'b' belongs to this comparison"),
        ((*first[:2], f"b: {config} rollout.steps=6", *budget, "--seeds", 2), "rollout.steps was 7 and is 6"),
        (
            ("compare", *(f"{name} run.seed=4" for name in (first[1], first[2])), *budget, "--seeds", 2),
            "run.seed was 3 and is 4",
        ),
    ):
        assert expected in refusal(capsys, *arguments, "--out", out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    assert "new directory" in refusal(capsys, *first, *budget, "--out", tmp_path / "full")
    assert not trained


def test_a_run_of_something_else_is_left_alone(config, cost, trained, tmp_path, capsys):
    arguments = ("compare", config, "--budget", f"evaluations={9 * cost}", "--seeds", 1, "--out", tmp_path / "o")
    assert run(*arguments) == 0
    path = tmp_path / "o" / "base" / "seed-0" / "config.yaml"
    path.write_text(path.read_text().replace("seed: 3", "seed: 4"))
    assert "another configuration" in refusal(capsys, *arguments)
    assert trained == ["base/seed-0"]


@pytest.mark.parametrize("budget", ["evaluations=1500", "seconds=10"])
@pytest.mark.long
def test_a_failing_run_does_not_stop_the_others(config, trained, tmp_path, capsys, budget):
    trained.failing = {"bad/seed-0", "bad/probe"}
    arguments = ("compare", f"bad: {config}", config, "--budget", budget, "--seeds", 2, "--out", tmp_path / "o")
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    log = tmp_path / "o" / "bad" / ("seed-0.log" if "evaluations" in budget else "probe.log")
    assert "1 run failed" in captured.err and str(log) in captured.err and "the moon is in the way" in captured.err
    assert {"base/seed-0", "base/seed-1"} <= set(trained) and (tmp_path / "o" / "table.md").is_file()
    trained.clear()
    trained.failing = set()
    assert run(*arguments) == 0
    assert trained[-1] == ("bad/seed-0" if "evaluations" in budget else "bad/seed-1")
    assert not any(name.startswith("base") for name in trained)


def test_report_only_trains_nothing(config, cost, trained, tmp_path, capsys):
    assert run("compare", config, "--budget", f"evaluations={9 * cost}", "--seeds", 1, "--out", tmp_path / "o") == 0
    (tmp_path / "o" / "table.md").unlink()
    assert run("compare", "--report-only", "--out", tmp_path / "o") == 0
    assert (tmp_path / "o" / "table.md").is_file() and trained == ["base/seed-0"]
    assert "nothing to train" in refusal(capsys, "compare", config, "--report-only", "--out", tmp_path / "o")


def test_final_numbers_are_of_the_report_split(config, cost, trained, tmp_path, capsys):
    out = tmp_path / "o"
    arguments = in_order(f"a: {config}", f"b: {config} rollout.steps=7", "--budget", f"evaluations={9 * cost}")
    assert run(*arguments, "--seeds", 2, "--out", out) == 0
    assert [("--base" in one, one.count("--guidance")) for one in trained.measured] == [(True, 1), (True, 1)] + [
        (False, 1)
    ] * 2
    assert all(one[one.index("--prompts") + 1] == "shapes:report" for one in trained.measured)
    results = json.loads((out / "results.json").read_text())
    assert results["final"] == "shapes:report"
    assert [point["score"] for point in results["configurations"][0]["runs"][1]["curve"]][-1] == 0.09  # of tune
    trained.measured.clear()
    assert run(*arguments, "--seeds", 2, "--out", out) == 0
    assert trained.measured == []  # written down
    assert run(*arguments, "--seeds", 2, "--out", out, "--guidance", 3, "--guidance", 1) == 0
    assert [("--base" in one, one[one.index("--guidance") + 1]) for one in trained.measured] == [(True, "3.0")] * 2 + [
        (False, "3.0")
    ] * 2
    capsys.readouterr()
    assert run("compare", "--report-only", "--out", out) == 0
    shown = (out / "table.md").read_text()
    assert "| configuration | base | base + CFG 3 | aligned | aligned + CFG 3 |" in shown
    assert "| a | 0.031 | 0.033 | 0.236 ± 0.064 | 0.238 ± 0.064 |" in shown  # t(0.975, 1) x 0.01 / 2
    assert "not resolved" in capsys.readouterr().out


def test_a_measurement_that_fails_is_said_and_made_up_for(config, cost, trained, tmp_path, capsys):
    trained.failing = {"base/seed-1 measured"}
    arguments = in_order(config, "--budget", f"evaluations={9 * cost}", "--seeds", 2, "--out", tmp_path / "o")
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert "base, seed 1, on shapes:report: exit code 2, 'measuring'" in captured.err and "1 run failed" in captured.err
    assert "base: not measured on shapes:report and left out: seed 1." in (tmp_path / "o" / "table.md").read_text()
    trained.failing = set()
    assert run(*arguments) == 0 and len(trained.measured) == 3
    assert "left out" not in (tmp_path / "o" / "table.md").read_text()


@pytest.mark.long
def test_a_prompt_list_of_other_contents_is_refused_when_it_goes_on(config, cost, trained, tmp_path, capsys):
    """And marked in the report where it was meant."""
    mine = tmp_path / "mine.txt"
    mine.write_text("a red circle\na blue square\na green star\n")
    command = ("compare", f"mine: {config} prompts.train={mine} prompts.eval=shapes:tune", "--out", tmp_path / "o")
    command += ("--budget", f"evaluations={9 * cost}", "--seeds")
    assert run(*command, "1") == 0
    mine.write_text("a red ring\n")
    assert "mine in" in (message := refusal(capsys, *command, "2")) and "prompts.train was 3 prompts" in message
    assert len(trained) == 1
    assert run(*command, "2", "--accept-changed-inputs") == 0
    capsys.readouterr()
    assert len(trained) == 2
    assert run("compare", "--out", tmp_path / "o", "--report-only") == 0
    assert "other inputs: prompts.train" in " ".join(capsys.readouterr().out.split())


def test_the_report_split_is_refused_before_the_end(config, cost, trained, tmp_path, capsys):
    mine = tmp_path / "mine.txt"
    mine.write_text("\n".join(f"a red circle {number}" for number in range(200)))
    arm = f"mine: {config} prompts.train=shapes:report prompts.eval={mine}@report"
    message = refusal(capsys, "compare", arm, "--budget", f"evaluations={9 * cost}", "--out", tmp_path / "o")
    assert "prompts.train=shapes:train" in message and f"prompts.eval={mine}@tune" in message
    assert not trained and not (tmp_path / "o").exists()


def test_runs_that_are_no_pairs_are_refused(config, cost, trained, tmp_path, capsys):
    arguments = (
        config,
        f"mine: {config} eval.samples=6",
        "--budget",
        f"evaluations={9 * cost}",
        "--out",
        tmp_path / "o",
    )
    message = refusal(capsys, "compare", *arguments)
    assert "eval.samples must be the same" in message and "'mine'" in message and not trained


def test_several_runs_at_once(config, cost, trained, tmp_path, capsys):
    budget, out = f"evaluations={9 * cost}", tmp_path / "o"
    assert run("compare", config, "--budget", budget, "--seeds", 5, "--jobs", 3, "--out", out) == 0
    assert sorted(trained) == [f"base/seed-{number}" for number in range(5)] and len(trained.measured) == 5
    assert "3 runs at once" in capsys.readouterr().out
    message = refusal(capsys, "compare", config, "--budget", "seconds=10", "--jobs", 2, "--out", tmp_path / "p")
    assert "--jobs must be 1" in message


def test_a_difference_chooses_the_seeds(config, cost, trained, tmp_path, capsys):
    arms, out = (f"a: {config}", f"b: {config} rollout.steps=7"), tmp_path / "o"
    common = ("--budget", f"evaluations={9 * cost}", "--out", out)
    assert run("compare", *arms, *common, "--detect", 0.05, "--sd", 0.1, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "takes 34 seeds" in shown and "Plan, 34 seeds each" in shown  # half a standard deviation: Cohen's table
    for options, expected in (
        (("--detect", 0.05), "needs the sd"),
        (("--detect", 0.05, "--sd", 0.1, "--seeds", 3), "Remove one of them"),
        (("--sd", 0.1), "belongs to --detect"),
        (("--detect", 0, "--sd", 0.1), "--detect must be above 0"),
        (("--detect", 0.05, "--sd", "nan"), "--sd must be above 0"),
    ):
        assert expected in refusal(capsys, "compare", *arms, *common, *options)
    assert not trained and not out.exists()
    assert run("compare", *arms, *common, "--detect", 0.05, "--sd", 0.01) == 0
    assert sorted(trained) == [f"{arm}/seed-{number}" for arm in "ab" for number in range(3)]  # five deviations: 3
    trained.clear()
    assert run("compare", *arms, *common, "--detect", 0.05, "--sd", 0.001) == 0  # two would do, and three are there
    assert trained == []
    message = refusal(capsys, "compare", *arms, *common, "--detect", 0.05)
    assert "two seeds that differ" in message  # these arms score alike


def drawn(path: Path) -> list[tuple[object, ...]]:
    """What the first iteration and the evaluations of a run drew: stage, prompt and address of each stored sample."""
    with sqlite3.connect(f"file:{path / 'samples.sqlite'}?immutable=1", uri=True) as store:  # leaves no file
        query = "SELECT stage, group_id, root, path, seed, prompt FROM samples WHERE iteration = 0"
        return sorted(store.execute(query).fetchall())


@pytest.mark.slow
def test_real_runs(config, cost, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["compare", config, f"small: {config} rollout.stochastic.size=1", "--budget", f"evaluations={2 * cost}"]
    arguments += ["--seeds", 2, "--out", out]
    assert run(*arguments) == 0
    results = json.loads((out / "results.json").read_text())
    for arm in results["configurations"]:
        for found in arm["runs"]:
            costs = [point["evaluations"] for point in found["curve"]]
            assert len(costs) == arm["iterations"] + 1 and costs[0] == 0
            planned = arm["iterations"] * arm["iteration_cost"]
            assert planned / 2 < costs[-1] <= planned  # what has no advantage is not trained, and costs less
            assert found["curve"][-1]["seconds"] > 0 and found["peak_memory_bytes"] > 2**27
    assert results["final"] == "shapes:report"
    same = [(drawn(out / "base" / f"seed-{n}"), drawn(out / "small" / f"seed-{n}")) for n in range(2)]
    assert all(first == second and first for first, second in same) and same[0] != same[1]
    before = [found["curve"][0]["score"] for arm in results["configurations"] for found in arm["runs"]]
    assert before == [before[0]] * 4  # one model, the same prompts and noise
    untouched = {path: path.stat().st_mtime_ns for path in (out / "small").rglob("*") if path.is_file()}
    (out / "base" / "seed-1" / "summary.json").unlink()
    assert run(*arguments, f"bad: {config} rewards.0.name=a.b:C") == 2
    captured = capsys.readouterr()
    assert "2 runs failed" in captured.err and "No module named 'a'" in captured.err
    after = json.loads((out / "results.json").read_text())
    for old, new in zip(results["configurations"], after["configurations"], strict=False):
        assert [found["curve"] for found in old["runs"]] == [found["curve"] for found in new["runs"]]
    assert {path: path.stat().st_mtime_ns for path in untouched} == untouched


def test_the_budget_is_priced(config, trained, tmp_path, capsys):
    """A pool at a tenth of the price pays for more iterations; the prices are kept to."""
    pool = "rollout.explore={precision: bfloat16, candidates: 8, keep: 4, audit: 0, select: best_worst}"
    asked = (f"pool: {config} {pool} rollout.tree.roots=4", "--budget", "evaluations=3000", "--seeds", 1)
    iterations = {}
    for prices in ("equal", "equal,bfloat16=0.1"):
        out = tmp_path / prices
        assert run(*in_order(*asked, "--prices", prices, "--out", out)) == 0
        entry = json.loads((out / "state.json").read_text())["configurations"][0]
        iterations[prices] = entry["iterations"]
        plan = make_plan(load_config(config, [pool, "rollout.tree.roots=4"]))
        counts = plan.network_evaluations
        low = counts["explore"] * (0.1 if "," in prices else 1)
        rest = counts["rollout"] + counts["values"] + counts["old"] + counts["group"] + counts["reference"]
        assert entry["iteration_cost"] == pytest.approx((low + rest + 3 * counts["update"]) / plan.iterations)
    assert iterations["equal,bfloat16=0.1"] > iterations["equal"]
    assert "--prices was equal when this comparison began" in refusal(
        capsys, *in_order(*asked, "--prices", "cpu-measured", "--out", tmp_path / "equal")
    )
    assert "--prices must begin with" in refusal(capsys, *in_order(*asked, "--prices", "free", "--out", tmp_path / "x"))


def test_variety_is_measured_once_also_of_runs_that_were_measured_without(config, trained, tmp_path):
    asked = (config, "--budget", "evaluations=3000", "--seeds", 2, "--out", tmp_path / "out")
    assert run(*in_order(*asked)) == 0
    assert collect(tmp_path / "out").arms[0].runs[0].others == {}
    trained.measured.clear()
    assert run(*in_order(*asked, "--variety", 4)) == 0
    assert [one[one.index("--variety") + 1] for one in trained.measured] == ["4", "4"]
    assert collect(tmp_path / "out").arms[0].runs[1].others == {"diversity": 0.25, "distance": 0.5}
    trained.measured.clear()
    assert run(*in_order(*asked, "--variety", 4)) == 0 and not trained.measured
