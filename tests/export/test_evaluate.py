"""`diffrl evaluate` measures what training measures, and writes down what it was asked for."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
import yaml
from scipy.stats import binomtest, ttest_1samp

from diffrl.cli import main
from diffrl.config.schema import EvalSettings
from diffrl.data.prompts import load_prompts
from diffrl.distributed.ranks import Ranks
from diffrl.export.measured import digest, interval
from diffrl.export.pictures import open_pipeline
from diffrl.export.request import ModelOptions
from diffrl.export.variety import draw_several, variety
from diffrl.models.encodings import PromptEncodings
from diffrl.tracking.metrics import read_metrics
from diffrl.training.evaluate import evaluate
from diffrl.training.scorers import make_scorers
from tests.training.harness import undrawn


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def made(random_sd3, tmp_path_factory):
    """A run with LoRA, and one of all weights with an EMA, which is what its evaluations are of."""
    folder, found = tmp_path_factory.mktemp("evaluated"), {}
    for name, lora, ema in (("lora", {"rank": 3, "alpha": 11.0}, None), ("full", None, {"decay": 0.3})):
        settings = {
            "run": {"name": name, "dir": str(folder), "iterations": 2, "eval_every": None},
            "model": {"family": "sd3", "path": str(random_sd3), "lora": lora},
            "prompts": {"train": "shapes:train", "per_iteration": 2},
            "rollout": {"steps": 3, "dynamics": {"kind": "flow_sde"}, "tree": {"roots": 4}},
            "rewards": [{"name": "sharpness"}],
            "train": {"learning_rate": 0.01, "ema": ema},
            "eval": {"rewards": [{"name": "sharpness"}, {"name": "shapes"}], "samples": 7, "steps": 3, "batch": 3},
        }
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings))
        with undrawn():
            assert run("train", path) == 0
        found[name] = folder / name
    return found


@pytest.mark.parametrize("name", ["lora", "full"])
def test_on_its_own_prompts_a_run_gets_the_means_of_its_training(made, name, capsys):
    metrics = [row for row in read_metrics(made[name] / "metrics.jsonl") if "held_out/shapes" in row]
    assert run("evaluate", "--run", made[name], "--base", "--json") == 0
    base, aligned = json.loads(capsys.readouterr().out)
    for row, then in ((base, metrics[0]), (aligned, metrics[-1])):
        expected = {key.removeprefix("held_out/"): value for key, value in then.items() if key.startswith("held_out/")}
        assert row["means"] == expected and len(expected) > 2
        assert (row["prompts"], row["split"], row["n"], row["noise_stream"]) == ("shapes:tune", "tune", 7, "eval")
    assert (base["weights"], base["iteration"], aligned["weights"], aligned["iteration"]) == ("base", 0, "aligned", 2)
    assert base["digest"] != aligned["digest"] and base["means"]["sharpness"] != aligned["means"]["sharpness"]


def test_report_is_asked_for_by_name_and_written_down(made, tmp_path, capsys):
    written = made["lora"] / "evaluations.jsonl"
    written.unlink(missing_ok=True)
    command = ["evaluate", "--run", made["lora"], "--prompts", "shapes:report", "--samples", 5, "--steps", 2]
    assert run(*command, "--guidance", 1, "--guidance", 3, "--out", tmp_path / "kept") == 0
    shown = capsys.readouterr().out
    assert "shapes:report, 2 steps" in shown and "95 % interval" in shown
    plain, guided = (json.loads(line) for line in written.read_text().splitlines())
    for row, guidance in ((plain, 1.0), (guided, 3.0)):
        assert (row["split"], row["n"], row["steps"], row["guidance_scale"]) == ("report", 5, 2, guidance)
        assert row["intervals"]["sharpness"][0] < row["means"]["sharpness"] < row["intervals"]["sharpness"][1]
    assert plain["digest"] == guided["digest"] and plain["noise_stream"] != "eval"
    left = len(load("shapes:report")) - 5
    assert plain["prompts_left"] == left and f"The last {left} of {left + 5} prompts were left out" in shown
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"aligned", "aligned-cfg3"}
    samples = [json.loads(line) for line in (tmp_path / "kept" / "aligned" / "samples.jsonl").read_text().splitlines()]
    assert sum(s["rewards"]["sharpness"] for s in samples) / 5 == pytest.approx(plain["means"]["sharpness"])
    assert all((tmp_path / "kept" / "aligned" / s["file"]).is_file() for s in samples)


def test_the_same_seed_gives_tune_and_report_different_noise(made, tmp_path, capsys):
    """With one prompt in both lists only the noise could differ."""
    (tmp_path / "one.txt").write_text("a red circle left of a blue square\n")
    (tmp_path / "one.jsonl").write_text('{"prompt": "a red circle left of a blue square"}\n')

    def sharpness(source: object) -> float:
        assert run("evaluate", "--run", made["lora"], "--samples", 2, "--prompts", source, "--json") == 0
        return json.loads(capsys.readouterr().out)[0]["means"]["sharpness"]

    assert sharpness(tmp_path / "one.txt") == sharpness(tmp_path / "one.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffrl.data.shapes.prompts", lambda split: load(tmp_path / "one.txt"))
        assert sharpness("shapes:tune") == sharpness(tmp_path / "one.txt") != sharpness("shapes:report")


def load(path):
    from diffrl.data.prompts import load_prompts

    return load_prompts(str(path))


def test_a_pipeline_needs_prompts_and_rewards(random_sd3, capsys):
    command = ["evaluate", "--model", random_sd3, "--prompts", "shapes:tune", "--samples", 3, "--steps", 2]
    assert run(*command, "--reward", "sharp=sharpness", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["weights"], row["iteration"], row["digest"], row["n"]) == ("model", None, None, 3)
    assert set(row["intervals"]) == {"sharp"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--model PATH or --run RUN_DIR"),
        (["--model", "x", "--reward", "shapes"], "needs --prompts SOURCE and at least one --reward"),
        (["--model", "x", "--base"], "--base goes with --run"),
        (["--run", "RUN", "--width", 64], "go with --model"),
        (["--run", "RUN", "--prompts", "shapes:held_out"], "held_out is now two splits: shapes:tune"),
        (["--run", "RUN", "--option", "a=1"], "--option is an option of a --reward"),
        (["--run", "RUN", "--reward", "shaps"], "shapes"),
    ],
)
def test_what_does_not_add_up_is_one_message(made, capsys, options, message):
    assert run("evaluate", *(made["lora"] if option == "RUN" else option for option in options)) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and message in captured.err and "Traceback" not in captured.err


@pytest.mark.parametrize(("value", "n"), [(0, 7), (1, 13)])
def test_a_share_of_none_or_of_all_is_wilsons_of_so_many_prompts(value, n):
    expected = binomtest(value * n, n).proportion_ci(method="wilson")
    values, prompts = torch.tensor([float(value)] * 3 * n + [torch.nan]), [*range(n), *range(n), *range(n), 0]
    assert interval(values, prompts) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert interval(values[:3], ["one"] * 3) is None and interval(values[-1:], ["one"]) is None


def test_one_sample_a_prompt_is_students_interval():
    values = torch.rand(11, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    expected = ttest_1samp(values.numpy(), 0).confidence_interval(0.95)
    assert interval(values, range(11)) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_samples_of_a_prompt_that_go_together_are_covered_as_often_as_it_says():
    """The same 30 prompts with four samples each, whose common part is larger than their own."""
    generator = torch.Generator().manual_seed(0)
    common, own = torch.randn(1000, 30, 1, generator=generator), torch.randn(1000, 30, 4, generator=generator)
    prompts = [prompt for prompt in range(30) for _ in range(4)]
    ends = (interval(draw, prompts) for draw in (common + 0.7 * own).flatten(1))
    covered = sum(low < 0 < high for low, high in ends) / 1000
    assert 0.93 < covered < 0.97


def test_the_digest_knows_every_bit_and_no_order():
    weights = {"a": torch.zeros(2, 3), "b": torch.ones(5, dtype=torch.bfloat16)}
    whole = digest(weights)
    assert len(whole) == len(hashlib.sha256().hexdigest()) and digest(dict(reversed(weights.items()))) == whole
    assert digest({**weights, "a": torch.zeros(3, 2)}) != whole != digest({**weights, "b": -weights["b"]})


def test_variety_is_of_pictures_from_the_same_noise(made, tmp_path, capsys):
    out = tmp_path / "kept"
    arguments = ("--base", "--variety", 3, "--guidance", 1, "--guidance", 2, "--out", out, "--json")
    assert run("evaluate", "--run", made["full"], *arguments) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["variety"]["distance"] for row in rows if row["weights"] == "base"] == [0, 0]
    aligned = [row["variety"] for row in rows if row["weights"] == "aligned"]
    assert all(one["distance"] > 0 for one in aligned) and aligned[0] != aligned[1]
    assert run("evaluate", "--run", made["full"], "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["variety"] is None


def test_variety_by_hand():
    black, white = torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.full((2, 3, 8, 8), 255, dtype=torch.uint8)
    same = variety(torch.stack([black, white]), torch.stack([black, black]))
    assert same == {"diversity": 0, "distance": pytest.approx(0.5**0.5)}  # half of all pixels differ by 1
    torch.manual_seed(0)
    noise = torch.randint(0, 256, (2, 4, 3, 8, 8), dtype=torch.uint8)
    assert variety(noise, None)["diversity"] > 0 and "distance" not in variety(noise, None)


def test_the_first_sample_of_a_prompt_is_the_evaluations(random_sd3):
    """So the distance to the base is of pictures that the means are of."""
    adapter, _ = open_pipeline(ModelOptions(model=str(random_sd3)), torch.device("cpu"))
    prompts = load_prompts("shapes:tune")[:3]
    settings = EvalSettings(rewards=({"name": "sharpness"},), samples=3, steps=3, batch=4)
    encode = PromptEncodings(adapter)(prompts)
    several = draw_several(adapter, encode, prompts, settings, 4, "eval", 2)
    scorers = make_scorers(settings.rewards, "eval.rewards", torch.device("cpu"), None)
    found = evaluate(Ranks(), adapter, encode, prompts, scorers, settings, 4, "eval")
    assert several.shape[:2] == (3, 2)
    off = (several[:, 0].int() - found.images.int()).abs()  # batches of other sizes round otherwise on some CPUs
    assert off.max() <= 1 and off.float().mean() < 0.01
    assert not torch.equal(several[:, 0], several[:, 1])
