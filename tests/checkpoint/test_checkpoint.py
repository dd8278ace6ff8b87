import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from diffrl.checkpoint.files import latest_checkpoint, load_checkpoint, prune_checkpoints, save_checkpoint
from diffrl.errors import CheckpointError
from tests.patience import until

SAVE_FOREVER = """
import os, sys
from itertools import count
from pathlib import Path
import torch
from diffrl.checkpoint.files import latest_checkpoint, prune_checkpoints, save_checkpoint

directory = Path(sys.argv[1])
for _ in sys.stdin:  # a line asks for one more victim; imports are paid once
    victim = os.fork()
    if victim == 0:
        last = latest_checkpoint(directory, lambda message: os._exit(1))
        for number in count(2 * last.step + 1 if last else 0):
            step = number // 2  # every step is saved twice
            tensors = {"policy": {"w": torch.full((20_011,), float(step))}, "ema": {"w": torch.full((7,), float(step))}}
            save_checkpoint(directory, step, tensors, {"step": step})
            prune_checkpoints(directory, 2)
    print(victim, flush=True)
    _, status = os.waitpid(victim, 0)
    print(os.WTERMSIG(status), flush=True)
"""


def bits(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.ndim else tensor.reshape(1).view(torch.uint8)


def save(directory, step, value=None):
    value = float(step) if value is None else value
    return save_checkpoint(directory, step, {"policy": {"w": torch.full((3, 5), value)}}, {"value": value})


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_tensors_come_back_bit_for_bit(tmp_path):
    special = torch.tensor([0.0, -0.0, 1e-45, -1e-40, float("inf"), float("nan"), 3.0000002])
    odd_nan = torch.tensor([0x7FC01234, -0x3FEDCC], dtype=torch.int32).view(torch.float32)
    base = torch.randn(5, 7)
    tensors = {
        "policy": {
            "special": special,
            "odd_nan": odd_nan,
            "bf16": torch.randn(11).bfloat16(),
            "half": torch.tensor([-0.0, 6e-8]).half(),
            "double": torch.tensor([5e-324, -0.0], dtype=torch.float64),
            "transposed": base.T,
            "shared": base[1:3],
            "expanded": torch.tensor([1.5]).expand(3),
            "parameter": nn.Parameter(torch.randn(2, 3)),
            "flag": torch.tensor([True, False]),
            "scalar": torch.tensor(17),
            "nothing": torch.empty(0, 3),
        },
        "empty": {},
    }
    path = save_checkpoint(tmp_path / "checkpoints", 40, tensors, {})
    assert path.name == "step-000040"
    loaded = load_checkpoint(path)
    assert loaded.step == 40
    assert loaded.tensors.keys() == tensors.keys()
    assert loaded.tensors["empty"] == {}
    for name, tensor in tensors["policy"].items():
        back = loaded.tensors["policy"][name]
        assert back.dtype == tensor.dtype and back.shape == tensor.shape, name
        assert torch.equal(bits(back), bits(tensor.detach())), name


def test_state_comes_back_exactly(tmp_path):
    floats = [
        0.1,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        1 / 3,
        2.0**-1074 * 3,
        *np.random.default_rng(0).normal(size=99),
    ]
    state = {"floats": floats, "big": 2**80, "none": None, "flag": True, "text": "größe \ud800\n", "deep": {"a": [{}]}}
    loaded = load_checkpoint(save_checkpoint(tmp_path, 3, {}, state)).state
    assert [x.hex() for x in loaded.pop("floats")] == [float(x).hex() for x in state.pop("floats")]
    assert loaded == state and loaded["flag"] is True


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": {"b": [1.0, float("nan")]}}, "state.a.b[1]"),
        ({"a": float("-inf")}, "state.a"),
        ({"a": {3: 1}}, "state.a"),
        ({"a": torch.zeros(1)}, "Tensor at state.a"),
        ({"a": np.float32(1)}, "float32 at state.a"),
    ],
)
def test_state_that_json_cannot_hold_is_refused_and_located(tmp_path, state, where):
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(tmp_path / "c", 1, {}, state)
    assert where in str(caught.value)
    assert not (tmp_path / "c").exists()


def flip_byte(file):
    content = bytearray(file.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    file.write_bytes(content)


def cut_short(file):
    os.truncate(file, file.stat().st_size - 1)


@pytest.mark.parametrize("name", ["policy.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", [flip_byte, cut_short, Path.unlink, lambda file: file.write_bytes(b"")])
def test_every_damage_to_every_file_is_noticed(tmp_path, name, damage):
    path = save(tmp_path, 7)
    damage(path / name)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)
    if name != "manifest.json":  # damage to a checksum shows as damage to the file it is of
        with pytest.raises(CheckpointError, match=name):
            load_checkpoint(path)


def test_files_outside_the_checkpoint_are_not_read(tmp_path):
    path = save(tmp_path / "c", 7)
    (path / "policy.safetensors").rename(tmp_path / "c" / "policy.safetensors")
    manifest = (path / "manifest.json").read_text().replace('"policy', '"../policy')
    (path / "manifest.json").write_text(manifest)
    with pytest.raises(CheckpointError, match="is missing"):
        load_checkpoint(path)


def test_latest_is_the_newest_that_verifies(tmp_path):
    assert latest_checkpoint(tmp_path / "absent", pytest.fail) is None
    assert latest_checkpoint(tmp_path, pytest.fail) is None
    for step in (20, 3, 1_000_000, 100):
        save(tmp_path, step)
    assert latest_checkpoint(tmp_path, pytest.fail).step == 1_000_000
    flip_byte(tmp_path / "step-1000000" / "policy.safetensors")
    (tmp_path / "step-000100" / "state.json").unlink()
    messages = []
    latest = latest_checkpoint(tmp_path, messages.append)
    assert (latest.step, latest.state, len(messages)) == (20, {"value": 20.0}, 2)
    assert "step-1000000" in messages[0] and "policy.safetensors has changed" in messages[0]
    assert "step-000100" in messages[1] and "state.json is missing" in messages[1]


def test_leftovers_are_ignored_and_removed_by_the_next_save(tmp_path):
    save(tmp_path, 3)
    for name in (".writing-step-000005", ".discarded-step-000001"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text("{")
    (tmp_path / "notes.txt").write_text("the user's own")
    assert latest_checkpoint(tmp_path, pytest.fail).step == 3
    save(tmp_path, 5)
    assert names(tmp_path) == ["notes.txt", "step-000003", "step-000005"]


@pytest.mark.parametrize("kind", ["a file", "a link", "a link to nothing"])
@pytest.mark.parametrize("name", ["writing-step-000005", "replaced-step-000005", "discarded-step-000003"])
def test_what_lies_where_a_save_works_is_in_nobodys_way(tmp_path, kind, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    directory, place = tmp_path / "checkpoints", tmp_path / "checkpoints" / f".{name}"
    save(directory, 3)
    if kind == "a file":
        place.write_text("left by something else")
    else:
        place.symlink_to(tmp_path / ("mine" if kind == "a link" else "nowhere"))
    save(directory, 5)
    prune_checkpoints(directory, 1)
    assert names(directory) == ["step-000005"] and latest_checkpoint(directory, pytest.fail).step == 5
    assert names(tmp_path / "mine") == ["notes.txt"]


def test_a_checkpoint_that_is_a_link_is_used_and_pruned_like_any_other(tmp_path):
    directory, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    shutil.move(save(directory, 3), elsewhere)
    (directory / "step-000003").symlink_to(elsewhere)
    assert latest_checkpoint(directory, pytest.fail).step == 3
    save(directory, 5)
    prune_checkpoints(directory, 1)
    assert names(directory) == ["step-000005"] and load_checkpoint(elsewhere).step == 3


def test_whoever_may_read_the_state_may_read_the_tensors(tmp_path):
    assert len({file.stat().st_mode for file in save(tmp_path, 3).iterdir()}) == 1


@pytest.mark.parametrize("kill_at", [1, 2, 3])
def test_a_replacement_cut_off_between_its_renames_loses_nothing(tmp_path, monkeypatch, kill_at):
    save(tmp_path, 3, 1.0)
    calls, replace = [], os.replace

    def replace_or_die(source, target):
        calls.append(target)
        if len(calls) == kill_at:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_or_die)
    if kill_at < 3:  # a replacement makes two renames
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 3, 2.0)
    monkeypatch.undo()
    assert latest_checkpoint(tmp_path, pytest.fail).state == {"value": 1.0}
    save(tmp_path, 5)
    assert names(tmp_path) == ["step-000003", "step-000005"]
    assert load_checkpoint(tmp_path / "step-000003").state == {"value": 1.0}


def test_a_disk_that_refuses_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, 3, 1.0)
    monkeypatch.setattr("diffrl.checkpoint.files.flush", lambda path: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(CheckpointError, match=r"step-000003.*No space"):
        save(tmp_path, 3, 2.0)
    assert latest_checkpoint(tmp_path, pytest.fail).state == {"value": 1.0}
    assert names(tmp_path) == ["step-000003"]


def test_prune_keeps_the_newest_complete_ones(tmp_path):
    for step in (2, 3, 5, 7, 11):
        save(tmp_path, step)
    cut_short(tmp_path / "step-000007" / "policy.safetensors")
    prune_checkpoints(tmp_path, None)
    assert len(names(tmp_path)) == 5
    prune_checkpoints(tmp_path, 2)
    assert names(tmp_path) == ["step-000005", "step-000007", "step-000011"]
    with pytest.raises(CheckpointError, match="keep=0"):
        prune_checkpoints(tmp_path, 0)


def test_a_kill_while_pruning_leaves_no_torn_checkpoint(tmp_path, monkeypatch):
    for step in (2, 3):
        save(tmp_path, step)
    deleted = tmp_path / ".discarded-step-000002"

    def remove_one_file_and_die(path, **_):
        if path.exists():
            (path / "manifest.json").unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr("reward_models.common.files.shutil.rmtree", remove_one_file_and_die)
    with pytest.raises(KeyboardInterrupt):
        prune_checkpoints(tmp_path, 1)
    monkeypatch.undo()
    assert names(tmp_path) == [deleted.name, "step-000003"]
    save(tmp_path, 5)
    assert names(tmp_path) == ["step-000003", "step-000005"]


@pytest.mark.long
def test_kill_at_any_moment_leaves_checkpoints_that_verify(tmp_path):
    chance = random.Random(0)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SAVE_FOREVER, str(tmp_path / "checkpoints")]
    newest = -1

    def further():
        saved = (tmp_path / "checkpoints").glob("step-??????")  # the very next one may have been pruned already
        return any(path.name[-6:].isdigit() and int(path.name[-6:]) > newest for path in saved)

    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, start_new_session=True
    ) as process:
        try:
            for number in range(20):
                process.stdin.write("\n")
                process.stdin.flush()
                victim = int(process.stdout.readline())
                if number % 2:  # even a slow machine gets a step further now and then
                    until(further)
                time.sleep(chance.uniform(0.02, 0.1))
                os.kill(victim, signal.SIGKILL)
                assert int(process.stdout.readline()) == signal.SIGKILL
                latest = latest_checkpoint(tmp_path / "checkpoints", pytest.fail)
                if latest is None:  # killed within the very first save
                    assert newest == -1
                    continue
                assert latest.step >= newest
                assert latest.state == {"step": latest.step}
                assert latest.tensors["policy"]["w"].eq(latest.step).all()
                newest = latest.step
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # or the victim saves for ever, and this waits for it
            raise
        process.stdin.close()
    assert newest > 5
