"""Weights split over two ranks train as whole ones do, and their checkpoints are read anywhere."""

import os
import shutil
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file

from diffrl.checkpoint.files import load_checkpoint, save_checkpoint
from diffrl.checkpoint.shards import save_shards
from diffrl.checkpoint.split import SplitTensors, part_name
from diffrl.config.load import make_config
from diffrl.distributed.ranks import open_ranks
from diffrl.distributed.sharding import blocks, roots, shard_network
from diffrl.errors import CheckpointError, ConfigError
from diffrl.run.checkpoints import load_aligned
from tests.distributed.test_distributed import MANY, both_ways, idle_rank_run, launch, policy
from tests.training.harness import (
    EXPLORE,
    FOREST,
    TREES,
    assert_same_run,
    assert_same_trees,
    distance,
    flat,
    go_on,
    rows_of,
    settings,
    summary_of,
)


def full_run(pipeline, directory):
    """All weights, a reference that is a network of its own, an average; gradients are clipped."""
    data = settings(
        pipeline,
        directory,
        prompts={"train": "shapes:train", "eval": "shapes:tune", "per_iteration": 2},
        objective={"kl": 0.3},
        train={
            "learning_rate": 3e-3,
            "epsilon": 1e-2,
            "updates_per_iteration": 2,
            "micro_batch": 5,
            "max_grad_norm": 0.01,
            "ema": {"decay": 0.7},
            "sharding": "fsdp",
        },
        track=TREES,
    )
    data["run"] |= {"iterations": 2, "checkpoint_every": 1}
    return data


def idle_run(pipeline, directory, checkpointing=True):
    """LoRA whose 3 rows two ranks cannot share evenly; one rank has nothing to train and fewer units than the other."""
    data = idle_rank_run(pipeline, directory)
    data["model"]["lora"] = {"rank": 3, "alpha": 5}
    data["train"] |= {"sharding": "fsdp", "gradient_checkpointing": checkpointing}
    data["run"] |= {"iterations": 2, "checkpoint_every": 1}
    data["eval"]["batch"] = 1  # of five samples the ranks have two and three
    return data


def lagging_run(pipeline, directory):
    """NFT about an old policy that lags behind; pools in low precision, into which the split weights are pushed."""
    data = idle_run(pipeline, directory, False) | {"objective": {"kind": "nft", "kl": 0.1}}
    data["model"]["lora"] = {"rank": 1, "alpha": 2}  # its single row is on one rank
    data["rollout"] |= FOREST | {"explore": EXPLORE | {"steps": None}}
    data["credit"] = {"reward": "outcome"}
    data["prompts"]["per_iteration"] = 4
    return data


def tilting_run(pipeline, directory):
    """Tree tilt with a reference; one rank's prompt has no direction."""
    data = idle_run(pipeline, directory, False) | {"objective": {"kind": "tilt", "kl": 0.1}, "credit": {}}
    data["train"]["updates_per_iteration"] = 1
    return data


def grouped_run(pipeline, directory):
    """DGPO, whose groups are compared before each update; one rank asks nothing for them."""
    objective = {"kind": "dgpo", "kl": 0.0, "levels": 2}
    return idle_run(pipeline, directory, False) | {"objective": objective, "credit": {}}


RUNS = {"full": full_run, "idle": idle_run}
MORE_RUNS = {"lagging": lagging_run, "tilting": tilting_run, "grouped": grouped_run}


@pytest.fixture(scope="module")
def more_runs(random_sd3, tmp_path_factory):
    return both_ways(MORE_RUNS, random_sd3, tmp_path_factory.mktemp("more"))


@pytest.fixture
def one(launched):
    return launched[0]


@pytest.fixture
def two(launched):
    return launched[1]


def assert_alike(run, expected, steps=(1, 2), loss=1e-7):
    """The same weights, numbers and counts up to rounding, and to `loss` in a loss whose terms cancel."""
    for step in steps:
        ours, other = policy(run, step), policy(expected, step)
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=5e-6)  # a step is 3e-3
    moved = policy(expected, 2) - policy(expected, 1)
    assert distance(policy(run, 2) - policy(run, 1), moved) < 1e-3 and moved.abs().max() > 1e-5
    for row, other in zip(rows_of(run), rows_of(expected), strict=True):
        for key in row.keys() & {"update/evaluated", "decodes", "groups/zero_spread", "reward_calls"}:
            assert row[key] == other[key], key
        for key in row.keys() & {
            "reward/mean",
            "update/loss",
            "update/grad_norm",
            "update/reference_kl",
            "fidelity/tau",
        }:
            assert row[key] == pytest.approx(other[key], rel=1e-3, abs=loss if key == "update/loss" else 1e-7), key
    assert_same_trees(run, expected)
    counts, expected_counts = (summary_of(path)["network_evaluations"] for path in (run, expected))
    assert counts["planned"] == expected_counts["planned"]
    assert counts["planned"] == counts["counted"] + counts["skipped"] or not counts["exact"]


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_split_weights_train_as_whole_ones(one, two, name):
    assert_alike(two / name / "run", one / name / "run")
    if name == "idle":
        assert [row["groups/zero_spread"] for row in rows_of(two / name / "run")[1:]] == [1, 1]


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_the_ratio_is_one_before_the_first_update(two, name):
    assert 0 <= summary_of(two / name / "run")["on_policy_error"] < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_each_rank_writes_its_own_rows(one, two, name):
    step = two / name / "run/checkpoints/step-000002"
    whole = load_checkpoint(one / name / "run/checkpoints/step-000002").tensors
    for group in ("policy", "optimizer", *(("ema",) if name == "full" else ())):
        parts = [load_file(step / f"{group}.{rank:05d}-of-00002.safetensors") for rank in range(2)]
        for key, tensor in whole[group].items():
            held = [len(part[key]) for part in parts if key in part and tensor.ndim]
            if tensor.ndim:
                assert held == [-(-len(tensor) // 2), len(tensor) // 2], key
    assert not (step / "policy.safetensors").exists()


@pytest.mark.long
def test_a_split_checkpoint_resumes_on_one_process(two, tmp_path):
    stopped = shutil.copytree(two / "full/run", tmp_path / "run")
    shutil.rmtree(stopped / "checkpoints/step-000002")
    go_on(stopped)
    assert (stopped / "checkpoints/step-000002/policy.safetensors").exists()
    assert_alike(stopped, two / "full/run", steps=[2])


@pytest.mark.long
def test_a_torn_part_is_passed_over(two, tmp_path):
    run = shutil.copytree(two / "full/run", tmp_path / "run")
    whole = load_aligned(run, torch.device("cpu"))
    average = load_checkpoint(run / "checkpoints/step-000002").tensors["ema"]
    assert whole.checkpoint.step == 2 and whole.messages == ()
    assert torch.equal(flat(whole.policy.state()), flat(average))
    part = run / "checkpoints/step-000002/ema.00001-of-00002.safetensors"
    os.truncate(part, part.stat().st_size - 1)
    older = load_aligned(run, torch.device("cpu"))
    assert older.checkpoint.step == 1 and part.name in older.messages[0]
    shutil.copy(two / "full/run/checkpoints/step-000002" / part.name, part)
    part.with_name("policy.00000-of-00002.safetensors").unlink()
    assert load_aligned(run, torch.device("cpu")).checkpoint.step == 1


@pytest.mark.slow
def test_a_split_run_resumes_as_if_it_had_never_stopped(one, two, tmp_path):
    """On two ranks, bit for bit; and on two ranks what one process began."""
    stopped = {}
    for name, source in (("split", two), ("whole", one)):
        stopped[name] = shutil.copytree(source / "full/run", tmp_path / name / "run")
        shutil.rmtree(stopped[name] / "checkpoints/step-000002")
    done = launch(*stopped.values(), script=MANY)
    assert done.returncode == 0, done.stderr
    assert_same_run(stopped["split"], two / "full/run")
    assert_alike(stopped["whole"], two / "full/run", steps=[2])
    assert (stopped["whole"] / "checkpoints/step-000002" / "policy.00001-of-00002.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_RUNS)
def test_split_weights_are_pushed_and_swapped_and_tilted(more_runs, name):
    one, two = more_runs
    # A pixel that rounds otherwise in another batch is 1e-4 of an advantage here.
    assert_alike(two / name / "run", one / name / "run", loss=1e-7 if name == "lagging" else 1e-5)


def test_a_launcher_that_splits_the_model_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match=r"asks for FSDP.*train.sharding=fsdp"):
        open_ranks(torch.device("cpu"), [], str(tmp_path), 60.0)


def test_eight_bit_states_are_not_split(random_sd3, tmp_path):
    with pytest.raises(ConfigError, match=r"train.optimizer must be adamw with train.sharding: fsdp"):
        make_config(settings(random_sd3, tmp_path, train={"sharding": "fsdp", "optimizer": "adamw_8bit"}))


def test_blocks_are_found_by_their_class(random_sd3):
    from diffusers import SD3Transformer2DModel

    network = SD3Transformer2DModel.from_pretrained(random_sd3, subfolder="transformer")
    assert roots(network) == [network]
    assert blocks(network) == list(network.transformer_blocks) and len(blocks(network)) > 1
    holder = torch.nn.ModuleList([network])
    assert roots(holder) == [network]


def test_what_cannot_be_split_is_refused(random_sd3):
    from diffusers import SD3Transformer2DModel

    def load():
        return SD3Transformer2DModel.from_pretrained(random_sd3, subfolder="transformer").requires_grad_(False)

    two = torch.nn.ModuleList([load(), load()])
    quantised, compiled = load(), load()
    weight = torch.zeros(3, dtype=torch.int8)
    quantised.proj_out.weight = torch.nn.Parameter(weight, requires_grad=False)
    compiled.transformer_blocks[1].compile()
    for network, message in {
        torch.nn.Linear(2, 3): "names its blocks.*Got Linear",
        two: "one transformer. Got 2",
        quantised: "base_precision: null",
        compiled: "model.compile: false",
    }.items():
        with pytest.raises(ConfigError, match=f"train.sharding: fsdp .*{message}.*train.sharding: none"):
            shard_network(network, None, widen=False)


def test_rows_are_read_across_parts(tmp_path):
    whole = torch.randn(7, 3)
    lengths = [3, 3, 1, 0]
    for rank, part in enumerate(whole.split(lengths)):
        tensors = {"w": part.contiguous()} | ({"step": torch.tensor(5.0)} if rank == 0 else {})
        save_file(tensors, tmp_path / (part_name("policy", rank, 4) + ".safetensors"))
    found = SplitTensors(sorted(tmp_path.iterdir()))
    assert sorted(found) == ["step", "w"] and found["step"] == 5.0 and found.shape("step") == ()
    assert found.shape("w") == (7, 3) and torch.equal(found["w"], whole)
    for start_row in range(8):
        for stop in range(start_row, 8):
            assert torch.equal(found.rows("w", start_row, stop), whole[start_row:stop])


class Refusing(dict):
    """Tensors that no disk has room for."""

    def items(self):
        raise OSError(28, "No space left on device")


def test_a_rank_whose_disk_is_full_stops_all_and_loses_nothing(tmp_path):
    save_checkpoint(tmp_path, 3, {"policy": {"w": torch.ones(2)}}, {"value": 1})
    barrier, values, errors = threading.Barrier(2, timeout=120), [None, None], [None, None]

    def body(rank):
        def exchange(value):
            values[rank] = value
            barrier.wait()
            found = list(values)
            barrier.wait()
            return found

        tensors = {"policy": {"w": torch.zeros(2)}} if rank == 0 else Refusing()
        try:
            save_shards(tmp_path, 3, tensors, {"value": 2}, rank, exchange)
        except CheckpointError as error:
            errors[rank] = str(error)

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert all("step-000003" in error and "rank 1" in error and "No space" in error for error in errors)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000003"]
    assert load_checkpoint(tmp_path / "step-000003").state == {"value": 1}
