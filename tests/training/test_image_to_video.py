"""Runs whose videos begin with an image: from the list of prompts to the page and the card, with two networks."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from diffrl.config import load_config
from diffrl.cost.plan import make_plan
from diffrl.errors import ConfigError
from diffrl.export.diffusers import export_run
from diffrl.gallery.runs import RunSource
from diffrl.models.tiny import build_pipeline, save_pipeline
from reward_models.media import from_pil
from tests.conftest import WORDS
from tests.edits import write_edits
from tests.training.harness import make_trainer, settings, start

ROOT = Path(__file__).parents[2]
PRESERVED = {"name": "preservation", "options": {"features": "pixels"}}


def data_of(folder, directory):
    path = write_edits(directory / "list")
    return settings(
        folder,
        directory,
        model={"family": "wan_i2v", "lora": {"rank": 2, "alpha": 4}},
        run={"iterations": 1, "checkpoint_every": 1},
        prompts={"train": path, "eval": path, "eval_on_train": True, "per_iteration": 2},
        rollout={"steps": 4, "guidance_scale": 2.0, "micro_batch": 4},
        rewards=[PRESERVED],
        train={"micro_batch": 4, "learning_rate": 1.0e-2, "updates_per_iteration": 1},
        eval={"rewards": [PRESERVED], "samples": 3, "steps": 1},
    )


@pytest.mark.long
def test_a_run_shows_its_images_and_its_card_draws_a_video(tmp_path):
    folder = tmp_path / "i2v22"
    save_pipeline(build_pipeline("wan_i2v", WORDS.split(), 0, boundary_ratio=0.9), folder, {"max_sequence_length": 8})
    run, _ = start(data_of(folder, tmp_path))
    source = RunSource("run", run)
    (state,) = (state for state in source.states() if state.key == "eval-0")
    samples = source.samples(state, [one.id for one in source.briefs(state, None)])
    assert len(samples) == 3
    for sample in samples:
        shown, given = (from_pil(Image.open(path)) for path in (run / sample.source, sample.metadata["source"]))
        assert torch.equal(shown, given)  # so small a one is kept as it is
        with Image.open(run / sample.file) as clip:
            frames = [from_pil(clip.convert("RGB"))] if clip.n_frames else []
            assert clip.n_frames == 5
        close = 1 - (frames[0].float() - given.float()).square().mean().sqrt() / 255  # 32 x 32: nothing is reduced
        assert sample.rewards["preservation"] == pytest.approx(float(close), abs=1e-4)
    export_run(run, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "image-to-video" in card and "load_into_transformer_2=True" in card
    scope: dict[str, object] = {}
    (tmp_path / "image.png").write_bytes(Path(samples[0].metadata["source"]).read_bytes())
    exec(card.split("```python")[1].split("```")[0].replace('"image.png"', f'"{tmp_path}/image.png"'), scope)
    assert scope["video"].shape == (5, 32, 32, 3)  # type: ignore[attr-defined]


@pytest.mark.long
def test_a_run_without_images_does_not_start(random_pipelines, tmp_path):
    data = data_of(random_pipelines("wan_i2v"), tmp_path)
    data["prompts"]["train"], data["rewards"] = "shapes:train", [{"name": "temporal_flicker"}]
    with pytest.raises(ConfigError, match="prompts.train must name an image .* for model.family wan_i2v"):
        make_trainer(data)


@pytest.mark.slow
def test_the_plan_counts_what_is_kept_of_an_image():
    """At 240 x 416, 33 frames: 16 x 9 x 30 x 52 of the encoding; of CLIP 16 x 16 + 1 tokens and its encoder."""
    words, frame, seen, held = 2 * 512 * 4096, 16 * 9 * 30 * 52, 257 * 1280, 16 + 24
    recipe = ROOT / "configs/wan_i2v/diffrl.yaml"
    found = []
    for path in ("Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", "Wan-AI/Wan2.2-I2V-A14B-Diffusers"):
        found.append(make_plan(load_config(recipe, [f"model.path={path}"])).memory)
    kept = [memory.kept["prompt encodings"] for memory in found]
    assert kept == [2 * held * (words + frame + seen), 2 * held * (words + frame)]
    encoders = [memory.host.kept["offloaded parts"] for memory in found]
    assert encoders == [2 * (5_680_910_336 + 630_766_080), 2 * 5_680_910_336]
