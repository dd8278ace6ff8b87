"""What is wrong with a run's prompts is in its log and its record; a run that has begun goes on all the same."""

import json

import pytest

from diffrl.config.load import make_config
from diffrl.errors import ConfigError
from diffrl.export.generate import generate_pictures
from diffrl.export.request import GenerateRequest
from diffrl.preflight.preview import Preview
from diffrl.preflight.prompts import plan_notes
from tests.training.harness import go_on, settings, start


def test_a_run_says_what_is_cut_and_not_held_out_and_goes_on_when_it_has_begun(random_sd3, tmp_path):
    (tmp_path / "a.txt").write_text(f"{'a red circle ' * 30}\na blue square\n")
    (tmp_path / "b.txt").write_text(f"{'A red  CIRCLE ' * 30}\nA  blue square.\n")  # the same prompts
    both = {"train": str(tmp_path / "a.txt"), "eval": str(tmp_path / "b.txt"), "per_iteration": 2}
    with pytest.raises(ConfigError, match="or nothing is held out. 2 of the 2 prompts"):
        start(settings(random_sd3, tmp_path, prompts=both))
    with pytest.raises(ConfigError, match="1 of the 2 texts of prompts.train are longer than CLIP .*too_long=warn"):
        start(settings(random_sd3, tmp_path, prompts={**both, "eval_on_train": True, "too_long": "refuse"}))
    assert not (tmp_path / "run").exists()
    data = settings(random_sd3, tmp_path, prompts={**both, "eval_on_train": True}, run={"iterations": 1})
    run_dir, shown = start(data)
    said = json.loads((run_dir / "environment.json").read_text())["prompts"]
    assert sum("1 of the 2 texts of prompts.train are longer than CLIP (" in line for line in said) == 1
    assert sum("2 of the 2 prompts that are evaluated are trained on too" in line for line in said) == 1
    assert all(line in shown and line in (run_dir / "log.txt").read_text() for line in said)
    assert set(plan_notes(Preview(make_config(data)))) == set(said)
    config = run_dir / "config.yaml"  # as it was written before there was such a key
    config.write_text("".join(line for line in config.open() if "eval_on_train" not in line))
    assert "or nothing is held out" in go_on(run_dir, "run.iterations=2")


def test_a_negative_prompt_is_counted_too(random_sd3, tmp_path):
    data = settings(random_sd3, tmp_path, run={"iterations": 1}, rollout={"guidance_scale": 2.0})
    data["model"]["negative_prompt"] = "a red circle " * 30
    with pytest.raises(ConfigError, match="1 of the 1 texts of model.negative_prompt are longer than CLIP"):
        start({**data, "prompts": {**data["prompts"], "too_long": "refuse"}})
    _, shown = start(data)
    assert "1 of the 1 texts of model.negative_prompt are longer than CLIP" in shown


def test_generate_leads_away_from_a_negative_prompt(random_sd3, random_pipelines, tmp_path):
    def image(name, **options):
        request = GenerateRequest(model=str(random_sd3), prompt=["a red circle"], steps=2, **options)
        generate_pictures(request, tmp_path / name)
        return next((tmp_path / name).rglob("*.png")).read_bytes()

    request = GenerateRequest(model=str(random_sd3), prompt=["a"], steps=1, negative_prompt="a blue square " * 30)
    assert any("texts of --negative-prompt are longer" in line for line in generate_pictures(request, tmp_path / "cut"))
    away = {"negative_prompt": "a blue square", "guidance_scale": 3.0}
    assert image("away", **away) == image("again", **away) != image("guided", guidance_scale=3.0)
    assert image("unguided", negative_prompt="a blue square", guidance_scale=1.0) == image("plain", guidance_scale=1.0)
    with pytest.raises(ConfigError, match="--negative-prompt needs a family that reads one. Got flux, whose adapter"):
        generate_pictures(
            GenerateRequest(model=str(random_pipelines("flux")), prompt=["a"], negative_prompt="b"),
            tmp_path / "refused",
        )


def test_generate_says_what_it_left_out_and_what_is_cut(random_sd3, tmp_path):
    lines = [{"prompt": "a blue square"}] * 9 + [{"prompt": "a red circle " * 30}, {"prompt": ""}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    request = GenerateRequest(model=str(random_sd3), prompts=str(tmp_path / "a.jsonl"), steps=1)
    said = generate_pictures(request, tmp_path / "out")
    assert any("1 of the 11 rows" in line and "a.jsonl:11" in line for line in said)
    assert sum("1 of the 2 texts of the prompts are longer than CLIP (" in line for line in said) == 1
