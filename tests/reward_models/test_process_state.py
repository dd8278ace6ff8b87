"""What a scorer leaves changed reaches nobody: it is put back, and told once, or refused."""

import locale
import os
import random
import signal
import socket
import sys
import threading
import warnings

import numpy as np
import pytest
import torch

from reward_models import RewardError, load_reward, process_state
from reward_models.asking import ask
from tests.reward_models.test_asking import Scorer, request


def everything():
    """Read by other ways than the product's where there are some: dtypes and devices of what is made, draws."""
    return (
        (torch.empty(1).dtype, torch.empty(1).device, torch.ones(1, requires_grad=True).mul(1).requires_grad),
        (torch.is_inference(torch.empty(1)), (torch.ones(2, 2) @ torch.ones(2, 2)).dtype),
        (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark),
        (torch.get_float32_matmul_precision(), torch.get_num_threads(), np.geterr(), os.getcwd()),
        (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()),
        (signal.getsignal(signal.SIGINT), locale.setlocale(locale.LC_ALL), socket.getdefaulttimeout()),
        (id(sys.stdin), id(sys.stdout), id(sys.stderr), sys.getrecursionlimit()),
    )


HELD = []
"""Guards of modes, which end with them."""


def after(change):
    """A scorer that changes something once it has scored."""
    return Scorer(gives=lambda output: (change(), output)[1])


PUT_BACK = {
    "gradient mode": lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
    "inference mode": lambda: (HELD.append(torch.inference_mode()), HELD[-1].__enter__()),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "default device": lambda: torch.set_default_device("meta"),
    "handling of errors": lambda: np.seterr(all="raise"),
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "working directory": lambda: os.chdir("/"),
    "the locale": lambda: locale.setlocale(locale.LC_ALL, "C" if locale.setlocale(locale.LC_ALL) != "C" else "C.UTF-8"),
    "handler of signals": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    "sys.stdout": lambda: setattr(sys, "stdout", None),
    "torch's global random": lambda: torch.manual_seed(3),
    "numpy's global random": lambda: np.random.random(),
    "Python's global random": lambda: random.random(),
    "recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 7),
    "limit of sockets": lambda: socket.setdefaulttimeout(3.0),
}
REFUSED = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "precision of matrix": lambda: torch.set_float32_matmul_precision("medium"),
    "backends.cudnn": lambda: setattr(torch.backends.cudnn, "benchmark", True),
}


@pytest.fixture(autouse=True)
def unsaid(monkeypatch):
    monkeypatch.setattr(process_state, "_said", set())


@pytest.mark.parametrize(("what", "gradients"), [*((what, False) for what in PUT_BACK), ("gradient mode", True)])
def test_what_a_scorer_leaves_changed_is_put_back_and_said_once(what, gradients):
    change, batch = PUT_BACK[what], request()
    with torch.set_grad_enabled(gradients):
        then = everything()
        with pytest.warns(RuntimeWarning, match=f"The reward own left .*{what}.* changed when it scored") as said:
            output = ask(after(change), batch, "own")
            assert everything() == then
            ask(after(change), batch, "own")
        assert len(said) == 1 and everything() == then
    assert not output.raw.is_inference() and output.raw.tolist() == batch.media.flatten(1).float().mean(1).tolist()


@pytest.mark.parametrize("what", REFUSED)
def test_what_numbers_of_other_threads_depend_on_is_refused_and_put_back(what):
    then = everything()
    with pytest.raises(RewardError, match=f"The reward own leaves .*{what}.* changed"):
        ask(after(REFUSED[what]), request(), "own")
    assert everything() == then


def test_a_scorer_that_fails_is_told_by_its_failure_and_its_changes_are_put_back():
    def fails(_):
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
        raise ValueError("no")

    then = everything()
    with pytest.warns(RuntimeWarning), pytest.raises(RewardError, match="The reward own failed.*ValueError: no"):
        ask(Scorer(fails), request(), "own")
    assert everything() == then


def test_in_a_thread_what_the_main_thread_changes_meanwhile_is_its_own_affair():
    said, inside, changed = [], threading.Event(), threading.Event()
    limit = sys.getrecursionlimit()

    def work():
        with warnings.catch_warnings(record=True) as caught:
            ask(Scorer(lambda _: (inside.set(), changed.wait(9))), request(), "own")
        said.extend(caught)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(9)
    try:
        sys.setrecursionlimit(limit + 5)
        changed.set()
        thread.join()
        assert not said and sys.getrecursionlimit() == limit + 5
    finally:
        sys.setrecursionlimit(limit)


def test_loading_changes_nothing_either(tmp_path, monkeypatch):
    (tmp_path / "loads_loudly.py").write_text(
        "import os, torch\n"
        "from tests.reward_models.test_asking import Scorer\n"
        "torch.set_grad_enabled(False)\n"
        "def make():\n"
        "    torch.set_default_dtype(torch.float64)\n"
        "    return Scorer()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    then = everything()
    with pytest.warns(RuntimeWarning, match="left .* changed when it was loaded") as said:
        load_reward("loads_loudly:make")
    assert len(said) == 2 and everything() == then


def test_a_directory_that_a_scorer_removed_is_one_sentence(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(RewardError, match="the working directory as it was. It cannot be put back"):
        ask(Scorer(lambda _: (os.chdir("/"), here.rmdir())), request(), "own")
