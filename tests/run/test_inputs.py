"""What a configuration names and others change between two parts of a run is refused, or named; a copy is not."""

import json
import os
import shutil
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file, save_file

from diffrl.config.load import make_config
from diffrl.data.prompts import load_prompts
from diffrl.errors import ConfigError
from diffrl.lifecycle import resume, train
from diffrl.run.checkpoints import NEWEST, load_aligned
from diffrl.run.inputs import ACCEPT, require_alike_on_ranks, warn_of_inputs
from diffrl.run.start_weights import begin_with
from diffrl.run.summary import write_before_after
from diffrl.training.inputs import digest_base, digest_named, digest_prompts
from diffrl.training.own_code import code_of
from reward_models.scoring.identity import content_mark
from tests.training.harness import go_on, settings, start

QUIET = Console(quiet=True)
TWO, OTHERS = "a red circle\na blue square\n", "two green stars\na white ring\n"
REWARD = """
import own_scale
from reward_models import RewardOutput, ScorerSpec
import torch

class Bright:
    spec = ScorerSpec(name="bright", description="mean brightness", range=(-1.0, 1.0), version="1")
    def to(self, device):
        return self
    def __call__(self, batch):
        value = SIGN * batch.media.float().flatten(1).mean(1) / 255
        return RewardOutput(value, torch.ones(len(value), dtype=torch.bool), [None] * len(value))
"""


def own_reward(folder, sign):
    (folder / "own_scale.py").touch()
    (folder / "own_bright.py").write_text(REWARD.replace("SIGN", str(sign)))
    sys.modules.pop("own_bright", None)


@pytest.fixture
def data(random_sd3, tmp_path, monkeypatch):
    """A run of two iterations whose prompts, held-out prompts, base and reward lie in files of the user's own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    shutil.copytree(random_sd3, tmp_path / "base")
    for name in ("p.txt", "e.txt"):
        (tmp_path / name).write_text(TWO)
    own_reward(tmp_path, 1)
    data = settings(tmp_path / "base", tmp_path, run={"iterations": 1, "checkpoint_every": 1, "eval_every": 1})
    data["prompts"] |= {"train": str(tmp_path / "p.txt"), "eval": str(tmp_path / "e.txt"), "eval_on_train": True}
    data["rewards"] = [{"name": "own_bright:Bright", "label": "bright"}]
    data["eval"] |= {"rewards": data["rewards"]}
    data["model"]["lora"] = {"rank": 2, "alpha": 2}
    return data


def change_weight(folder):
    """One weight in the first block of a tensor in the middle of the network, the file's time and size as they were."""
    path = next((folder / "transformer").glob("*.safetensors"))
    tensors, times = load_file(path), path.stat()
    name = sorted(tensors)[len(tensors) // 2]
    tensors[name].view(-1)[0] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


CHANGES = {
    "prompts.train": lambda folder: (folder / "p.txt").write_text(OTHERS),
    "rewards.bright code": lambda folder: (folder / "own_scale.py").write_text("# other"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_resuming_refuses_other_inputs_of_the_same_name(data, tmp_path, name):
    """And takes them when told so; then the checkpoint, the summary and environment.json tell of it."""
    run, _ = start(data)
    CHANGES[name](tmp_path)
    with pytest.raises(ConfigError, match=rf"{name} was .* --accept-changed-inputs"):
        resume(run, QUIET, overrides=["run.iterations=2"])
    assert json.loads((run / "checkpoints.json").read_text()) == {"iteration": 1}  # nothing was touched
    assert "before-1" not in os.listdir(run)
    resume(run, QUIET, overrides=["run.iterations=2"], accept_changed_inputs=True)
    changes = json.loads((run / "summary.json").read_text())["input_changes"]
    assert [one["after_iteration"] for one in changes] == [1] and name in changes[0]["inputs"]
    assert name in json.loads((run / "environment.json").read_text())["resumed"][-1]["changed"]
    go_on(run, "run.iterations=3")  # what was accepted is the run's own from there on
    assert json.loads((run / "summary.json").read_text())["input_changes"] == changes


OWN_PART = "own_part:"
OWN_PARTS = """
from diffrl.credit.assign import Scored
from tests.training.own import Unclipped

class Loss(Unclipped):
    pass

def rule(scored: Scored):
    return scored.value

def pick(rewards, keep):
    return rewards.argsort()[:keep]
"""


@pytest.mark.long
def test_resuming_refuses_other_code_of_every_part_of_the_users_own(data, tmp_path):
    """An objective, a credit rule and a selection, whose file was changed between two parts of a run."""
    (tmp_path / "own_part.py").write_text(OWN_PARTS)
    explore = {"precision": "training", "candidates": 9, "keep": 3, "audit": 1, "select": f"{OWN_PART}pick"}
    data["rollout"] |= {"explore": explore}
    data |= {"objective": {"kind": f"{OWN_PART}Loss"}, "credit": {"reward": f"{OWN_PART}rule"}}
    try:
        run, _ = start(data)
        before = (run / "checkpoints.json").read_text()
        (tmp_path / "own_part.py").write_text(OWN_PARTS.replace("argsort()", "argsort(descending=True)"))
        sys.modules.pop("own_part")
        with pytest.raises(ConfigError, match=ACCEPT) as raised:
            resume(run, QUIET, overrides=["run.iterations=2"])
        for key in ("objective.kind", "credit.reward", "rollout.explore.select"):
            assert f"{key} was " in str(raised.value)
        assert (run / "checkpoints.json").read_text() == before
        resume(run, QUIET, overrides=["run.iterations=2"], accept_changed_inputs=True)
    finally:
        sys.modules.pop("own_part", None)


def test_other_held_out_prompts_are_named_and_no_longer_a_pair(data, tmp_path):
    run, _ = start(data)
    (tmp_path / "e.txt").write_text(OTHERS)
    shown = go_on(run, "run.iterations=2")
    assert "prompts.eval was" in shown and "What depends on them does not compare across it" in " ".join(shown.split())
    assert not write_before_after(run, "bright", 2, tmp_path / "grid.png")


def test_a_pipeline_elsewhere_with_other_times_is_the_same(random_sd3, tmp_path):
    shutil.copytree(random_sd3, tmp_path / "copy", copy_function=shutil.copyfile)
    (tmp_path / "copy" / "transformer" / "diffusion_pytorch_model.fp16.safetensors").write_bytes(b"a copy")
    bases = [digest_base(make_config(settings(path, tmp_path)).model) for path in (random_sd3, tmp_path / "copy")]
    assert bases[0] == bases[1] and len(bases[0]) > 3
    change_weight(tmp_path / "copy")
    assert [k for k, v in digest_base(make_config(settings(tmp_path / "copy", tmp_path)).model).items()
            if v != bases[0][k]] == ["model.path/transformer", "model.path/transformer inside"]  # fmt: skip


def test_large_files_are_read_in_part_and_every_tensor_is_seen(tmp_path):
    """A first value of any tensor counts; of 16 MB less than a tenth is read."""
    path, tensors = tmp_path / "w.safetensors", {f"t{i}": torch.zeros(500_000) for i in range(8)}
    save_file(tensors, path)
    marks = {content_mark(path)}
    for name in tensors:
        save_file({**tensors, name: torch.ones(500_000)}, path)
        marks.add(content_mark(path))
    assert len(marks) == 9
    with path.open("r+b") as file:  # whoever reads all of it would see this
        file.seek(-1_000_000, os.SEEK_END)
        file.write(b"\1")
    assert content_mark(path) in marks


def test_the_middle_and_the_end_of_every_tensor_are_seen_too(random_sd3, tmp_path):
    shutil.copytree(random_sd3, tmp_path / "base")
    model = make_config(settings(tmp_path / "base", tmp_path)).model
    path = next((tmp_path / "base" / "transformer").glob("*.safetensors"))
    large, seen = {f"t{i}": torch.zeros(500_000) for i in range(3)}, []
    for name, at in [(None, 0), *((name, at) for name in large for at in (250_000, 499_999))]:
        changed = {**large} if name is None else {**large, name: large[name].index_fill(0, torch.tensor([at]), 1.0)}
        save_file(changed, path)
        seen.append(digest_base(model))
    assert len({tuple(sorted(one.items())) for one in seen}) == len(seen)
    assert all(set(one) == set(seen[0]) for one in seen) and len({one["model.path/transformer"] for one in seen}) == 1


def test_own_code_counts_with_what_it_imports_from_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_kit").mkdir()
    files = {
        "own_part.py": "import json\nfrom own_kit import deep\n\ndef late():\n    import own_late\n",
        "own_kit/__init__.py": "",
        "own_kit/deep.py": "from . import deeper\n",
        "own_kit/deeper.py": "import own_part\n",
        "own_late.py": "",
    }
    for name, text in {**files, "own_other.py": "", "json.py": "raise SystemExit"}.items():
        (tmp_path / name).write_text(text)
    try:
        before = code_of("own_part:Mine")
        assert set(before) == {*files, "json.py"}
        for name in (*files, "own_other.py"):
            (tmp_path / name).write_text(files.get(name, "") + "# other\n")
            assert (code_of("own_part:Mine") != before) == (name in files)
            before = code_of("own_part:Mine")
    finally:
        for name in [name for name in sys.modules if name.startswith("own_")]:
            del sys.modules[name]


def test_prompts_count_with_order_metadata_and_the_images_that_they_edit(tmp_path):
    def listed(*rows):
        (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return digest_prompts(load_prompts(str(tmp_path / "p.jsonl")))

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    one, two = {"prompt": "one", "source": "a.png"}, {"prompt": "two"}
    seen = [listed(one, two), listed(two, one), listed(one, {**two, "text": "x"})]
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png")
    assert len({*seen, listed(one, two)}) == 4


def test_embedded_prompts_have_a_digest(random_sd3, tmp_path):
    assert {"prompts.train", "prompts.eval"} <= digest_named(make_config(settings(random_sd3, tmp_path))).keys()


def test_what_is_made_of_a_run_names_another_base(data, tmp_path):
    run, _ = start(data)
    assert not load_aligned(run, torch.device("cpu")).messages
    change_weight(tmp_path / "base")
    (message,) = load_aligned(run, torch.device("cpu")).messages
    assert message.startswith("Warning") and "model.path/transformer" in message


def test_another_runs_weights_are_not_put_on_another_base(data, tmp_path):
    run, _ = start(data)
    change_weight(tmp_path / "base")
    (tmp_path / "p.txt").write_text(OTHERS)  # which a new run may have
    data["run"]["name"] = "second"
    begun = begin_with(make_config(data), run, NEWEST, print)
    with pytest.raises(ConfigError, match="model.path/transformer was"):
        train(begun, QUIET)
    assert not (tmp_path / "second").exists()
    train(begun, QUIET, accept_changed_inputs=True)


def test_a_checkpoint_without_digests_goes_on_and_says_so():
    (line,) = warn_of_inputs(None, {"prompts.train": "x"}, "runs/old")
    assert "keeps no digests" in line


@pytest.mark.parametrize("name", ["prompts.train", "package torch"])
def test_ranks_with_other_inputs_do_not_begin(name):
    """On both ranks alike; packages may differ by rounding, and are no reason."""
    mine, theirs = {"prompts.train": "1", "package torch": "2"}, {"prompts.train": "1", "package torch": "2"}
    theirs[name] = "3"
    ranks = SimpleNamespace(gather_objects=lambda value: [mine, theirs])
    for own in (mine, theirs):
        with pytest.raises(ConfigError, match="rank 1, prompts.train was 1") if "pr" in name else nullcontext():
            require_alike_on_ranks(SimpleNamespace(ranks=ranks, inputs=own))
