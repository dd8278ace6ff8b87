"""A run that edits: each prompt's image is part of it, from the list to what is kept and drawn."""

import importlib
import io
import json
import re
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from diffrl.cli import main
from diffrl.config.load import make_config
from diffrl.cost.plan import make_plan
from diffrl.errors import ConfigError
from diffrl.export.diffusers import export_run
from diffrl.gallery.app import make_app
from diffrl.gallery.export import export_site
from diffrl.gallery.links import ServerLinks
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import Site
from diffrl.gallery.sources import find_sources
from diffrl.models.families.qwen_image_edit import STOCK as QWEN_IMAGE_EDIT
from diffrl.tracking.index import source_file
from diffrl.tracking.store import SampleStore
from diffrl.trees.read import list_trees, read_tree
from reward_models.media import from_pil
from tests.edits import WORDS, write_edits
from tests.tiers import daily
from tests.training.harness import TREES, make_trainer, settings, start

FAMILIES = ["flux_kontext", "qwen_image_edit"]


@pytest.fixture
def family():
    return "flux_kontext"


@pytest.fixture
def data(family, random_pipelines, tmp_path):
    path = write_edits(tmp_path / "list")
    return settings(
        random_pipelines(family),
        tmp_path,
        model={"family": family, "lora": {"rank": 2, "alpha": 4}},
        run={"iterations": 1, "checkpoint_every": 1},
        prompts={"train": path, "eval": path, "eval_on_train": True, "per_iteration": 3},
        eval={"rewards": [{"name": "diversity"}], "samples": 18, "steps": 1},
        track=TREES,
    )


def run_command(*words):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code or 0


@pytest.mark.long
@pytest.mark.parametrize("family", daily(FAMILIES, ["flux_kontext"], ["qwen_image_edit"]))
def test_a_run_keeps_and_exports_what_it_edits(data, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module(QWEN_IMAGE_EDIT), "VAE_IMAGE_SIZE", None)  # which the card may set
    run, _ = start(data)
    with SampleStore.open_readonly(run) as store:
        kept = list(store.read())
    sources = {Path(sample.metadata["source"]).name for sample in kept}
    assert sources == {"0.png", "1.png", "2.png"}
    held_out = [sample for sample in kept if sample.stage == "eval" and sample.iteration == 0]
    pairs = {(one.prompt, one.metadata["source"]): [] for one in held_out}
    for one in held_out:
        pairs[one.prompt, one.metadata["source"]].append(one.rewards["diversity"])
    # Nine prompts, three of the same words: the two samples of one are compared with each other alone.
    assert len(held_out) == 18 and len(pairs) == 9
    assert all(first == pytest.approx(second, rel=1e-5) for first, second in pairs.values())
    assert len({round(first, 4) for first, _ in pairs.values()}) > 1
    source = RunSource("run", run)
    (state,) = (state for state in source.states() if state.key == "eval-0")
    for sample in source.samples(state, [one.id for one in source.briefs(state, None)]):
        shown, edited = (from_pil(Image.open(path)) for path in (run / sample.source, sample.metadata["source"]))
        assert torch.equal(shown, edited)  # so small a one is kept as it is
    export_run(run, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "image-to-image" in card
    scope: dict[str, object] = {}
    (tmp_path / "image.png").write_bytes(Path(held_out[0].metadata["source"]).read_bytes())
    exec(card.split("```python")[1].split("```")[0].replace('"image.png"', f'"{tmp_path}/image.png"'), scope)
    assert scope["image"].size == (32, 32)  # type: ignore[attr-defined]


@pytest.mark.long
def test_every_page_of_a_sample_or_a_tree_shows_what_it_edits(data, tmp_path):
    """Trees know it; the pages have the run's copy of the image, live and exported, and a vote does not tell whose."""
    run, out = start(data)[0], tmp_path / "site"
    with SampleStore.open_readonly(run) as store:
        held_out = list(store.read(stage="eval", iteration=0))
    copies = {one.metadata["source"]: Path(source_file(one.metadata)).name for one in held_out}
    record = read_tree(run, *list_trees(run)[0])
    assert record.metadata["source"] in copies
    (source,) = find_sources([run])
    options = {"votes": out.parent / "votes.jsonl"}
    client = TestClient(make_app(Site([source], ServerLinks("test"), options)), base_url="http://127.0.0.1")
    for page in (f"tree?run=run&tree={record.name}", "compare?columns=run@eval-0&columns=run@eval-1"):
        found = client.get(f"/{page}").text
        shown = set(re.findall(r"sources/(\w+\.webp)", found))
        assert shown and shown <= set(copies.values()) and "edit" in found
        assert (copies[record.metadata["source"]] in shown) or "compare" in page
    assert set(re.findall(r"sources/(\w+\.webp)", client.get("/trees?run=run").text)) <= set(copies.values())
    vote = client.get("/vote?a=run@eval-0&b=run@eval-1").text
    address = re.search(r'src="(/vote/image/[^"]*/source)"', vote)[1]
    shown = from_pil(Image.open(io.BytesIO(client.get(address).content)))
    edited = [from_pil(Image.open(path)) for path in copies]
    assert any(torch.equal(shown, one) for one in edited) and not any(copy in vote for copy in copies.values())
    report = client.get("/report?run=run").text
    assert report.count('<figure class="edited">') == report.count('<li class="item"') > 0
    export_site([source], out, options)
    pages = [page for page in out.rglob("*.html") if "The image to edit" in page.read_text()]
    assert any(page.name.startswith("tree") for page in pages) and len(pages) >= 3, pages
    for page in pages:
        for picture in re.findall(r'src="([^"]+)" [^>]*alt="The image to edit"', page.read_text()):
            assert picture.startswith("data:") or (page.parent / picture).is_file()


def test_commands_edit_an_image(random_pipelines, tmp_path, capsys):
    model, path = random_pipelines("flux_kontext"), write_edits(tmp_path)
    common = ("generate", "--model", model, "--steps", "1", "--guidance-scale", "2.5")
    image = tmp_path / "images" / "1.png"
    assert run_command(*common, "--prompts", path, "--limit", 4, "--out", tmp_path / "listed") == 0
    assert run_command(*common, "--prompt", WORDS[0], "--image", image, "--out", tmp_path / "one") == 0
    (folder,) = find_sources([tmp_path / "listed"])
    (state,) = folder.states()
    briefs = folder.briefs(state, None)
    assert [brief.source for brief in briefs] == [str(tmp_path / "images" / f"{n}.png") for n in (0, 0, 0, 1)]
    for sample in folder.samples(state, [brief.id for brief in briefs]):  # four samples: their sources are none
        shown, edited = (
            from_pil(Image.open(path)) for path in (folder.media(sample.source), sample.metadata["source"])
        )
        assert torch.equal(shown, edited)
    rows = [json.loads(line) for line in (tmp_path / "listed" / "samples.jsonl").read_text().splitlines()]
    assert [(row["prompt"], Path(row["source"]).name) for row in rows] == [(w, "0.png") for w in WORDS] + [
        (WORDS[0], "1.png")
    ]
    capsys.readouterr()
    assert run_command(*common, "--prompt", "a cat", "--out", tmp_path / "none") == 2
    assert "The prompts must name an image to edit with every prompt" in capsys.readouterr().err
    assert run_command(*common, "--prompts", path, "--image", image, "--out", tmp_path / "both") == 2
    assert "--image goes with prompts that are given one by one" in capsys.readouterr().err


@pytest.mark.slow
def test_the_plan_counts_the_sources_tokens_and_the_second_call():
    """At 512 x 512: 1,024 tokens of the image that is drawn, as many of the source, 512 of words."""
    given = {
        "run": {"iterations": 2},
        "eval": {"rewards": [{"name": "sharpness"}], "samples": 3, "steps": 4},
        "model": {"path": "black-forest-labs/FLUX.1-Kontext-dev", "dtype": "bfloat16", "height": 512, "width": 512},
        "prompts": {"train": "shapes:train", "per_iteration": 2},
        "rollout": {"steps": 4, "dynamics": {"kind": "flow_sde"}, "tree": {"roots": 2}},
        "rewards": [{"name": "sharpness"}],
        "train": {"learning_rate": 1e-4},
    }
    plain = {**given["model"], "family": "flux", "path": "black-forest-labs/FLUX.1-dev"}
    kontext = {**given["model"], "family": "flux_kontext"}
    one, two, three = (
        make_plan(make_config(given | {"model": {**model, "lora": {"rank": 8}}}))
        for model in (plain, kontext, {**kontext, "true_cfg_scale": 2.0})
    )
    tokens = (2048 + 512) / (1024 + 512)  # nearly all that passes grows with them
    assert two.memory.passing["rollout"] / one.memory.passing["rollout"] == pytest.approx(tokens, rel=2e-3)
    kept = [plan.memory.kept["prompt encodings"] for plan in (one, two)]
    assert kept[1] - kept[0] == kept[0] / (512 * 4096 + 768) * 1024 * 64
    assert two.network_evaluations == one.network_evaluations
    assert three.network_evaluations == {name: 2 * count for name, count in two.network_evaluations.items()}
    assert three.memory.passing["rollout"] == pytest.approx(2 * two.memory.passing["rollout"], rel=2e-3)
    with pytest.raises(ConfigError, match="model.true_cfg_scale must be null for model.family: flux"):
        make_config(given | {"model": {**plain, "true_cfg_scale": 2.0}})


@pytest.mark.long
def test_true_guidance_trains_on_policy(data):
    data["model"]["true_cfg_scale"] = 2.0
    trainer = make_trainer(data)
    done = trainer.iterate()
    assert trainer.updater.on_policy_error < 1e-5 and done.metrics["update/grad_norm"] > 0
    meter, plan = trainer.session.meter, trainer.session.plan
    assert meter.evaluations["rollout"] == plan.network_evaluations["rollout"]
    assert torch.isfinite(done.samples.table.total).all()
