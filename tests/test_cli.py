"""The command line as a user meets it: what works, and what one message and exit code 2 answer."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from diffrl.cli import main
from diffrl.export.pictures import write_sample
from diffrl.models.families import FAMILIES
from diffrl.records import Prompt
from diffrl.terminal.exits import errors_as_messages
from tests.patience import LONG
from tests.tiers import daily
from tests.training.harness import settings as harness_settings
from tests.training.harness import start, undrawn

RECIPES = Path(__file__).parents[1] / "configs"


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


@pytest.fixture
def config_file(run_settings, tmp_path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(run_settings))
    return path


def expect_refusal(capsys, *arguments: object) -> str:
    """One message on stderr, exit code 2, no traceback."""
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and "Traceback" not in captured.err + captured.out
    return captured.err


def test_an_override_may_be_written_as_an_option(config_file, capsys):
    assert "run.nam is not a known key" in expect_refusal(capsys, "check", config_file, "--run.nam=x")
    assert "Got 0" in expect_refusal(capsys, "check", config_file, "--run.iterations=0", "run.name=a.b=c")
    assert run("check", config_file, "--run=x") == 2 and "No such option" in capsys.readouterr().err


def test_a_run_in_place_of_a_configuration_is_told_from_one(config_file, tmp_path, capsys):
    said = expect_refusal(capsys, "train", tmp_path)
    assert f"--resume {tmp_path}" in said and f"{config_file} run.name=NEW" in said


@pytest.fixture(scope="module")
def runs(random_sd3, tmp_path_factory):
    """A finished run with LoRA and one with full fine-tuning, made through the command line."""
    folder = tmp_path_factory.mktemp("cli")
    made = {}
    for name, lora in (("lora", {"rank": 3, "alpha": 11.0}), ("full", None)):
        settings = {
            "run": {"name": name, "dir": str(folder), "iterations": 2, "checkpoint_every": 1, "eval_every": None},
            "model": {"family": "sd3", "path": str(random_sd3), "lora": lora},
            "prompts": {"train": "shapes:train", "eval": "shapes:tune", "per_iteration": 2},
            "rollout": {"steps": 3, "dynamics": {"kind": "flow_sde"}, "tree": {"roots": 4}},
            "rewards": [{"name": "shapes"}],
            "train": {"learning_rate": 0.01},
            "eval": {"rewards": [{"name": "shapes_strict"}], "samples": 5, "steps": 3},
        }
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings))
        with contextlib.nullcontext() if name == "full" else undrawn():
            assert run("train", path) == 0
        made[name] = folder / name
    return made


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        (["--help"], {"torch", "diffusers", "transformers", "pydantic", "numpy", "accelerate"}),
        (["plan", RECIPES / "tiny-sd3/sol_rl.yaml"], {"torch", "diffusers", "transformers", "scipy"}),
        (["check", RECIPES / "quickstart.yaml"], {"diffusers", "torch._dynamo", "torch.distributed.tensor"}),
    ],
)
def test_a_command_imports_nothing_heavy_that_it_does_not_need(command, heavy, tmp_path):
    code = """
import sys
from diffrl.cli import main
try:
    main(sys.argv[2:])
except SystemExit as stop:
    assert not stop.code
heavy = set(sys.argv[1].split()) & set(sys.modules)
assert not heavy, heavy
"""
    arguments = [" ".join(heavy), *map(str, command)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--help" not in command or all(
        name in done.stdout for name in ("train", "generate", "check", "plan", "export")
    )


def test_a_run_leaves_what_it_promises(runs, capsys):
    directory = runs["full"]
    for name in ("config.yaml", "environment.json", "metrics.jsonl", "samples.sqlite", "before_after.png", "curve.png"):
        assert (directory / name).is_file(), name
    summary = json.loads((directory / "summary.json").read_text())
    assert {"strict_before", "strict_after", "partial_before", "partial_after"} <= set(summary["held_out"])
    assert summary["network_evaluations"]["planned"] == summary["network_evaluations"]["counted"] > 0
    assert summary["peak_memory_bytes"] > 2**27 and torch.__version__.startswith(summary["versions"]["torch"])
    assert {"rollout", "decode", "reward", "update", "other"} <= set(summary["seconds"])
    assert summary["seed"] == 0 and summary["on_policy_error"] < 1e-5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["model.device=cuda"], "valid, and cannot run on this machine:\n  - The device cuda"),
        (["--memory", "0.5GB"], "valid, and cannot run on a GPU of 0.5 GiB:\n  - Not enough memory"),
        (["--gpu", "rtx 4090", "rollout.explore={precision: nvfp4, candidates: 8, keep: 4}"], "10.0 or more, not RTX"),
    ],
)
def test_a_valid_configuration_is_told_from_a_machine_that_cannot_run_it(config_file, options, said, capsys):
    if "model.device=cuda" in options and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    assert run("check", config_file, *options) == 0
    assert said in capsys.readouterr().out
    expect_refusal(capsys, "check", config_file, *options, "model.path=no/a/b")  # which is wrong on every machine


def test_check_refuses_what_only_the_pipeline_can_judge_as_train_does(
    config_file, random_sd3, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(random_sd3, "shifted")
    scheduler = Path("shifted/scheduler/scheduler_config.json")
    scheduler.write_text(json.dumps({**json.loads(scheduler.read_text()), "shift": -3.0}))
    message = expect_refusal(capsys, "check", config_file, "model.path=shifted")
    assert "noise levels that fall" in message
    assert message == expect_refusal(capsys, "train", config_file, "model.path=shifted")


def test_check_asks_every_reward_once_unless_told_not_to(config_file, tmp_path, monkeypatch, capsys):
    (tmp_path / "asked_rewards.py").write_text(
        "from reward_models.images.shapes import ShapesScorer\n"
        "class Breaks(ShapesScorer):\n"
        "    def __call__(self, batch):\n        raise OSError('no such server as ' + batch.prompts[0])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    broken = ["check", config_file, "eval.rewards.1.name=asked_rewards:Breaks"]
    assert "no such server as a" in expect_refusal(capsys, *broken)
    assert run(*broken, "--no-ask-rewards") == 0


def test_a_path_that_is_no_name_on_the_hub_is_a_sentence_everywhere(config_file, tmp_path, capsys):
    out = ["--out", tmp_path / "out", "--prompt", "a red circle"]
    for command in (
        ["check", config_file, "model.path=no name/on hub"],
        ["train", config_file, "run.name=nameless", "model.path=no name/on hub"],
        ["generate", "--model", "no name/on hub", *out],
    ):
        assert "must be a diffusers directory or a hub id" in expect_refusal(capsys, *command)
    assert run("plan", config_file, "model.path=no name/on hub") == 0
    assert "No memory estimate" in capsys.readouterr().out


def test_plan_needs_no_model_and_speaks_json(config_file, capsys):
    assert run("plan", config_file, "model.path=some/hub-id") == 0
    text = capsys.readouterr().out
    assert "Network evaluations" in text and "  huggingface.co/some/hub-id for model.path: size not known" in text
    assert run("plan", config_file, "--json", "--gpu", "h100") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["downloads"] == []
    assert plan["utilisation"] == 0.4 and plan["hours"]["H100"] > 0
    rollout, update, gate, evaluation = 3 * 8 * 5, 3 * 8 * 3, 8 * 3, 3 * 7 * 3
    assert plan["total_network_evaluations"] == rollout + update + gate + evaluation


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_bad_input_ends_in_one_message_and_leaves_nothing(config_file, capsys):
    assert "CUDA" in expect_refusal(capsys, "train", config_file, "model.device=cuda")
    assert not (config_file.parent / "runs").exists()


def test_what_training_depends_on_stays_when_resuming(runs, capsys):
    before = (runs["lora"] / "config.yaml").read_bytes()
    message = expect_refusal(capsys, "train", "--resume", runs["lora"], "model.path=http://a//b", "train.epsilon=1")
    assert "only run.iterations" in message and "--init-from" in message
    assert "Got model.path=http://a//b train.epsilon=1." in message  # as typed: the first is no path
    assert (runs["lora"] / "config.yaml").read_bytes() == before


def test_a_finished_run_says_so_and_how_to_go_on(runs, monkeypatch, capsys):
    monkeypatch.setattr("diffrl.lifecycle.open_session", lambda *args: pytest.fail("the model was loaded"))
    assert run("train", "--resume", runs["full"]) == 0
    said = capsys.readouterr().out
    assert "is finished" in said and f"diffrl train --resume {runs['full']} run.iterations=4" in said


def test_a_checkpoint_is_chosen_by_its_iteration(runs, tmp_path, capsys):
    from safetensors.torch import load_file

    assert run("export", runs["lora"], "--step", 1, "--out", tmp_path / "one") == 0
    assert run("export", runs["lora"], "--out", tmp_path / "newest") == 0
    one, newest = (load_file(tmp_path / name / "pytorch_lora_weights.safetensors") for name in ("one", "newest"))
    assert one.keys() == newest.keys() and any(not torch.equal(one[name], newest[name]) for name in one)
    cards = [(tmp_path / name / "README.md").read_text() for name in ("one", "newest")]
    assert "1 iterations" in cards[0] and "Iteration 1 has no held-out evaluation." in cards[0]
    assert "2 iterations" in cards[1] and "| strict |" in cards[1]
    assert run("generate", "--run", runs["lora"], "--best", "--prompt", "a red circle", "--out", tmp_path / "best") == 0
    assert "Best held-out shapes_strict of the iterations 2:" in capsys.readouterr().out  # the only one evaluated
    assert run("evaluate", "--run", runs["lora"], "--step", 1, "--samples", 2, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["weights"], row["iteration"]) == ("aligned", 1)


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("generate", ["--run", "RUN", "--step", 3], "has those of 1, 2"),
        ("evaluate", ["--run", "RUN", "--step", 1, "--best"], "Got --step 1 and --best"),
        ("evaluate", ["--model", "x", "--best"], "Got --best without it. Add --run."),
        ("fidelity", ["CONFIG", "--run", "RUN", "--step", 3, "--candidates", 4, "--k", 1], "has those of 1, 2"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_refused(runs, tmp_path, capsys, command, options, message):
    named = {"RUN": runs["lora"], "CONFIG": runs["lora"] / "config.yaml"}
    given = [named.get(option, option) for option in options]
    if command != "evaluate":
        given += ["--out", tmp_path / "out", *(["--prompt", "a red circle"] if command == "generate" else [])]
    assert message in expect_refusal(capsys, command, *given)
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory")]
)
def test_running_out_of_memory_is_one_message(error, capsys):
    with pytest.raises(SystemExit) as end, errors_as_messages():
        raise error
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith("error: Out of memory") and "Traceback" not in said


def test_generate_from_a_pipeline_and_from_a_run(runs, random_sd3, tmp_path, capsys):
    from PIL import Image

    common = ["--prompt", "a red circle", "--prompt", "two blue squares", "--per-prompt", "2", "--seed", "5"]
    assert run("generate", "--model", random_sd3, "--steps", "3", *common, "--out", tmp_path / "base") == 0
    assert run("generate", "--run", runs["lora"], *common, "--out", tmp_path / "lora") == 0
    rows = [json.loads(line) for line in (tmp_path / "base" / "samples.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == ["a red circle"] * 2 + ["two blue squares"] * 2
    base = [Image.open(tmp_path / "base" / row["file"]).tobytes() for row in rows]
    lora = [Image.open(tmp_path / "lora" / row["file"]).tobytes() for row in rows]
    assert len(set(base)) == 4 and all(a != b for a, b in zip(base, lora, strict=True))
    assert (tmp_path / "base" / "grid.png").is_file()
    assert "overwritten" in expect_refusal(
        capsys, "generate", "--model", random_sd3, *common, "--out", tmp_path / "base"
    )


def test_a_place_that_cannot_be_written_is_one_message(runs, config_file, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    for command in (
        ["train", config_file, f"run.dir={tmp_path / 'file'}"],
        ["export", runs["lora"], "--out", tmp_path / "file" / "out"],
        ["generate", "--run", runs["lora"], "--prompt", "a red circle", "--out", tmp_path / "file" / "out"],
    ):
        assert str(tmp_path / "file") in expect_refusal(capsys, *command)


def test_a_run_is_trained_by_one_process_at_a_time(runs, capsys):
    from diffrl.run.directory import locked

    with locked(runs["full"]):
        assert "Another one is training" in expect_refusal(capsys, "train", "--resume", runs["full"])


def test_generate_says_what_it_lacks(random_sd3, tmp_path, capsys):
    out = ["--out", tmp_path / "new"]
    odd = ["--model", random_sd3, "--prompt", "a red circle", "--device", "gpu", *out]
    assert "auto, cpu or cuda" in expect_refusal(capsys, "generate", *odd)
    assert "prompt" in expect_refusal(capsys, "generate", "--model", random_sd3, *out)
    assert "--run" in expect_refusal(capsys, "generate", "--prompt", "a red circle", *out)
    assert not (tmp_path / "new").exists()


def test_an_exported_lora_loads_in_plain_diffusers_and_changes_pictures_the_same_way(runs, random_sd3, tmp_path):
    from diffusers import StableDiffusion3Pipeline

    from diffrl.run.checkpoints import load_aligned

    assert run("export", runs["lora"], "--out", tmp_path / "lora") == 0
    plain = StableDiffusion3Pipeline.from_pretrained(random_sd3)
    base = pictures(plain)
    plain.load_lora_weights(str(tmp_path / "lora"))
    aligned = load_aligned(runs["lora"], torch.device("cpu")).adapter.pipeline
    assert (pictures(plain) - base).abs().max() > 1e-3
    torch.testing.assert_close(pictures(plain), pictures(aligned), rtol=1e-4, atol=1e-5)
    card = (tmp_path / "lora" / "README.md").read_text()
    assert "load_lora_weights" in card and "base_model" in card and "| strict |" in card
    scope: dict[str, object] = {}
    exec(card.split("```python")[1].split("```")[0], scope)
    assert scope["image"].size == (32, 32)  # type: ignore[attr-defined]


@pytest.mark.long
def test_an_exported_full_fine_tune_is_a_whole_pipeline(runs, tmp_path):
    from diffusers import StableDiffusion3Pipeline

    from diffrl.run.checkpoints import load_aligned

    assert run("export", runs["full"], "--out", tmp_path / "full") == 0
    plain = StableDiffusion3Pipeline.from_pretrained(tmp_path / "full")
    aligned = load_aligned(runs["full"], torch.device("cpu")).adapter.pipeline
    torch.testing.assert_close(pictures(plain), pictures(aligned), rtol=1e-4, atol=1e-5)


CARDS = [name for name, facts in FAMILIES.items() if not facts.edits and name != "sd3"]


@pytest.mark.parametrize("family", daily(CARDS, [], set(CARDS) - {"flux"}))
def test_the_card_of_a_bfloat16_run_loads_bfloat16(random_pipelines, tmp_path, family):
    data = harness_settings(
        random_pipelines(family),
        tmp_path,
        model={"family": family, "dtype": "bfloat16", "lora": {"rank": 2, "alpha": 4}},
        guards={"on_policy_tolerance": 1.0e-2},
        run={"name": "run", "dir": str(tmp_path), "iterations": 1, "checkpoint_every": 1},
    )
    made, _ = start(data)
    assert run("export", made, "--out", tmp_path / "out") == 0
    snippet = (tmp_path / "out/README.md").read_text().split("```python")[1].split("```")[0]
    facts = FAMILIES[family]
    lines = dict(facts.stock_lines)  # of what a component holds
    scale = lines.get("guidance_scale", f", {facts.guidance_argument}={1.0 + facts.guidance_offset}, ")
    assert scale.format(1.0) in snippet and all(line.partition("=")[0] in snippet for line in lines.values())
    scope: dict[str, object] = {}
    exec(snippet, scope)
    assert scope["pipeline"].transformer.dtype == torch.bfloat16  # type: ignore[attr-defined]
    if "video" in scope:
        assert scope["video"].shape == (9, 32, 32, 3)  # type: ignore[attr-defined]
    else:
        assert scope["image"].size == (32, 32)  # type: ignore[attr-defined]


def pictures(pipeline) -> torch.Tensor:
    pipeline.set_progress_bar_config(disable=True)
    latents = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    options = {"num_inference_steps": 3, "guidance_scale": 1.0, "max_sequence_length": 1, "output_type": "latent"}
    return pipeline(["a red circle", "a blue square"], latents=latents, **options).images.detach()


def test_a_termination_leaves_what_ctrl_c_leaves(monkeypatch):
    """The command gets to its own end, exits with 143, and what SIGTERM did before it does again."""
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("the command left SIGTERM to the system"))
    try:
        ends = []
        with pytest.raises(SystemExit) as end, errors_as_messages():
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                ends.append("what was made is listed")
                raise
        assert end.value.code == 128 + signal.SIGTERM and ends
        with pytest.raises(SystemExit) as end, errors_as_messages():
            raise KeyboardInterrupt
        assert end.value.code == 128 + signal.SIGINT
    finally:
        assert signal.signal(signal.SIGTERM, before).__name__ == "<lambda>"


def test_a_process_that_a_command_forks_is_ended_by_a_termination():
    """A worker that is told to go must not take it for the command's own interruption."""
    ready, tell = os.pipe()
    with errors_as_messages():
        child = os.fork()
        if child == 0:
            try:
                os.write(tell, b"!")  # a signal that comes while it forks, Python forgets
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(int(LONG))
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM


def test_a_sample_is_listed_as_soon_as_it_is_written(tmp_path):
    """So that it is there too if the process is killed a moment later."""
    with (tmp_path / "samples.jsonl").open("w") as index:
        write_sample(tmp_path, index, torch.zeros(3, 5, 7, dtype=torch.uint8), Prompt("a"), 0, 0, 0, None)
        assert json.loads((tmp_path / "samples.jsonl").read_text())["file"] == "0000-0.png"


NOWHERE = (
    "generate --run nowhere --prompt x --out images",
    "generate --model nowhere --prompt x --out images",
    "evaluate --run nowhere --prompts shapes:report",
    "export nowhere --out exported",
    "score nowhere --reward sharpness",
    "score . --reward nowhere",
    "generate --model . --prompts nowhere.txt --out images",
    "evaluate --model . --prompts nowhere.txt --reward shapes",
    f"generate --model . --prompts {'nowhere' * 60} --out images",
    "evaluate --model . --prompts shapes:report --reward nowhere",
)


def test_what_is_not_there_is_refused_before_anything_heavy_is_loaded(tmp_path):
    code = """
import sys
from diffrl.cli import main
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as end:
        print(end.code, "torch" in sys.modules, flush=True)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, *NOWHERE], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ran.stdout.splitlines() == ["2 False"] * len(NOWHERE), ran
    errors = ran.stderr.splitlines()
    assert len(errors) == len(NOWHERE) and all("nowhere" in line for line in errors), errors
