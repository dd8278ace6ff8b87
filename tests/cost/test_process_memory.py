"""What a machine offers, and the one rule by which train, check and plan say whether a run fits."""

import math
import resource
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from diffrl.config.load import load_config
from diffrl.cost import host_limits, process_memory
from diffrl.cost.gpus import GPUS
from diffrl.cost.host_limits import address_words, group_bytes, processes_here
from diffrl.cost.hours import hours_rows
from diffrl.cost.memory import LIBRARIES
from diffrl.cost.plan import make_plan
from diffrl.cost.process_memory import Offer, offer_here, offer_to_all, shortages
from diffrl.distributed.ranks import Ranks
from diffrl.errors import ConfigError
from diffrl.preflight import machine, rewards
from diffrl.preflight import preview as preview_module
from diffrl.preflight.check import check_config
from diffrl.preflight.preview import Preview
from diffrl.terminal.exits import errors_as_messages
from tests.conftest import ROOT

GIB, CUDA = 2**30, torch.device("cuda")
CONTEXT = GIB // 2


def card(monkeypatch, total, taken=0, cached=0):
    """A GPU: of its total, its context, what others took and what this process's allocator keeps are not free."""
    free = total - CONTEXT - taken - cached
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free, total))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: cached + 3 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: 3 * GIB)


def test_a_card_that_nobody_else_uses_offers_all_of_it(monkeypatch):
    card(monkeypatch, 80 * GIB, cached=5 * GIB)
    assert offer_here(CUDA).gpu == 80 * GIB
    card(monkeypatch, 80 * GIB, taken=30 * GIB, cached=5 * GIB)
    assert offer_here(CUDA).gpu == 50 * GIB - CONTEXT + LIBRARIES  # of which the plan's libraries take theirs


@pytest.mark.parametrize("recipe", ["flux/diffrl", "sd3/sol_rl", "flux/24gb", "wan/diffrl"])
def test_train_check_and_plan_agree(recipe, monkeypatch):
    """On a card that nobody else uses, and whatever the card."""
    config = load_config(ROOT / f"configs/{recipe}.yaml")
    prompts, held_out = config.prompts.per_iteration, config.eval.samples  # each process needs one of both
    plan = make_plan(config, prompts if prompts <= held_out else math.gcd(prompts, held_out))
    monkeypatch.setattr(preview_module, "make_plan", lambda *given: plan)
    monkeypatch.setattr(process_memory, "available_host_bytes", lambda: 10**15)
    for name, gpu in GPUS.items():
        card(monkeypatch, gpu.memory)
        answers = []
        preview = Preview(config, plan.world_size, machine.target_machine(name, None))
        for ask in (
            partial(machine.memory_notes, config, plan, offer_here(CUDA)),
            partial(machine.dry_memory, preview),
        ):
            try:
                ask()
                answers.append(True)
            except ConfigError:
                answers.append(False)
        *_, (_, row) = hours_rows(plan, (gpu,), 0.4)
        assert answers == [plan.memory.peak <= gpu.memory] * 2 and answers[0] == ("not fit" not in row)


def test_check_looks_before_it_loads_rewards(monkeypatch):
    free, make = [20 * GIB], rewards.make_scorers

    def make_scorers(*given, **options):
        free[0] = 0
        return make(*given, **options)

    monkeypatch.setattr(process_memory, "available_host_bytes", lambda: free[0])
    monkeypatch.setattr(rewards, "make_scorers", make_scorers)
    lines = check_config(load_config(ROOT / "configs/quickstart.yaml"), ask_rewards=False)
    assert free == [0] and not any("Not enough" in line for line in lines)


def test_an_h100_is_what_cuda_reports_of_it():
    assert 79 * GIB < GPUS["h100"].memory < 81_559 * 2**20  # nvidia-smi's total


def planned(gpu=0, host=0, mapped=0):
    """A plan that needs so much, libraries among it."""
    made = make_plan(load_config(ROOT / "configs/quickstart.yaml")).memory
    parts = replace(made.host, kept={"libraries": host}, passing={"checkpoint": 0}, mapped=mapped)
    return replace(made, kept={"all": gpu}, passing={}, host=parts)


def test_each_of_a_machines_processes_takes_its_own_part(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    memory, offer = planned(gpu=7 * GIB, host=5 * GIB), Offer(gpu=7 * GIB, host=20 * GIB)
    assert not shortages(memory, offer, 4)
    assert "25.00 GiB of the computer's memory, 5.00 GiB for each of 5" in shortages(memory, offer, 5)[0]
    assert "40.00 GiB" in shortages(memory, offer, 16)[0]  # eight on each of two machines
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert not shortages(memory, offer, 16)
    assert not shortages(memory, Offer(gpu=7 * GIB), 16)  # another machine, of which only the GPU is known
    assert "8.00 GiB and 7.00 GiB are there on cuda" in shortages(planned(gpu=8 * GIB), offer, 1)[0]


def test_what_is_short_is_said_or_refused(monkeypatch):
    monkeypatch.setattr(process_memory, "processes_here", lambda world: 1)
    config, offer = load_config(ROOT / "configs/quickstart.yaml"), Offer(gpu=7 * GIB, host=5 * GIB, mappable=6 * GIB)
    plan = SimpleNamespace(memory=planned(gpu=8 * GIB, host=5 * GIB, mapped=2 * GIB), world_size=1)
    with pytest.raises(ConfigError) as refused:
        machine.memory_notes(config, plan, offer)
    assert len(refused.value.problems) == 2 and "7.00 GiB of address space, 2.00 GiB of it mapped" in str(refused.value)
    tried = config.model_copy(update={"guards": config.guards.model_copy(update={"memory": "warn"})})
    assert machine.memory_notes(tried, plan, offer) == tuple(refused.value.problems)


def test_ranks_take_the_least_that_any_of_them_saw(monkeypatch):
    ranks = Ranks(world=3)
    monkeypatch.setattr(ranks, "gather_objects", lambda own: [own, (9, 3, None), (7, 4, 5)])
    monkeypatch.setattr(process_memory, "offer_here", lambda device, started: Offer(8, started, None))
    assert offer_to_all(ranks) == Offer(7, 3, 5)


def test_the_libraries_that_are_here_already_are_not_counted_twice(monkeypatch):
    monkeypatch.setattr(process_memory, "available_host_bytes", lambda: 10 * GIB)
    monkeypatch.setattr(process_memory, "anonymous_bytes", lambda: GIB // 4)
    assert offer_here(torch.device("cpu"), started=4).host == 11 * GIB
    monkeypatch.setattr(process_memory, "anonymous_bytes", lambda: 8 * GIB)  # a model of somebody else's notebook
    assert offer_here(torch.device("cpu")).host == 10 * GIB + LIBRARIES


def test_a_limit_on_the_address_space_is_said(monkeypatch):
    assert address_words() == ""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64 * GIB, resource.RLIM_INFINITY))
    taken = 64 * GIB - host_limits.address_space_left()
    assert 0 < host_limits.mapped_bytes() < taken
    assert offer_here(torch.device("cpu")).mappable == pytest.approx(64 * GIB - taken, rel=0.01)
    assert "limited to 64.00 GiB (ulimit -v, RLIMIT_AS)" in address_words() and "Mapped files" in address_words()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("unable to mmap 9 bytes from file <a.safetensors>: Cannot allocate memory (12)"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_running_out_of_address_space_names_the_limit(error, monkeypatch, capsys):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64 * GIB, resource.RLIM_INFINITY))
    with pytest.raises(SystemExit) as ended, errors_as_messages():
        raise error
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "Out of memory" in said and "ulimit -v unlimited" in said


def group(root, path, **files):
    (root / path).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / path / f"memory.{name}").write_text(str(text))


def test_every_control_group_around_a_process_limits_it(tmp_path):
    """As of a job in a batch system: the step has no limit, the job and the node have."""
    own = tmp_path / "cgroup"
    own.write_text("0::/job/step\n")
    assert group_bytes(own, tmp_path) == sys.maxsize
    group(tmp_path, "job/step", max="max\n", current=900)
    group(tmp_path, "job", max="1000\n", current=900, stat="anon 500\ninactive_file 300\nactive_file 50\n")
    group(tmp_path, ".", max=2000, current=1100)
    assert group_bytes(own, tmp_path) == 1000 - 900 + 350  # files that were read are no lost memory


def test_control_groups_of_version_1(tmp_path):
    own = tmp_path / "cgroup"
    own.write_text("9:cpu,cpuacct:/other\n5:memory:/slurm/job_1\n1:name=systemd:/x\n")
    stat = "inactive_file 1\ntotal_inactive_file 20\ntotal_active_file 3\n"
    group(tmp_path, "memory/slurm/job_1", limit_in_bytes=700, usage_in_bytes=650, stat=stat)
    group(tmp_path, "memory", limit_in_bytes=2**63 - 4096, usage_in_bytes=10**6)
    assert group_bytes(own, tmp_path) == 73


@pytest.mark.parametrize(("said", "expected"), [(None, 8), ("4", 4), ("none", 8)])
def test_processes_of_this_machine(monkeypatch, said, expected):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if said is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
    assert processes_here(16) == expected and processes_here(3) == 3
