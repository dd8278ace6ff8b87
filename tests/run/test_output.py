"""A run goes on, and keeps its lines, whatever becomes of its standard output."""

import os
import subprocess
import sys

import pytest

from diffrl.checkpoint.files import newest_first, step_of
from tests.patience import LONG
from tests.run.test_resume import ROOT
from tests.training.harness import settings, write_config

TRAIN = "from diffrl.cli import main; main()"
PLAIN = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def start(arguments, stdout, cwd=ROOT, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", TRAIN, *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=PLAIN | environment,
        cwd=cwd,
    )


def trained(tmp_path):
    """Whether all iterations were trained, kept and told of in the run's log."""
    log = (tmp_path / "run/log.txt").read_text()
    return step_of(newest_first(tmp_path / "run/checkpoints")[0]) == 3 and "3/3  reward" in log


@pytest.fixture
def config(random_sd3, tmp_path):
    return write_config(settings(random_sd3, tmp_path, run={"iterations": 3}), tmp_path / "config.yaml")


LATIN = {"PYTHONIOENCODING": "latin-1"}
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.slow
@pytest.mark.parametrize("environment", [LATIN, ASCII])
def test_a_run_outlives_the_encoding_of_its_output_and_then_its_reader(config, tmp_path, environment):
    with start(["train", config], subprocess.PIPE, **environment) as process:
        assert any(b"1/3  reward" in line for line in process.stdout)
        process.stdout.close()
        said = process.stderr.read()
    assert process.wait(LONG) == 0 and said == b"" and trained(tmp_path)


@pytest.mark.long
def test_a_run_outlives_a_full_disk_of_its_output(config, tmp_path):
    with open("/dev/full", "wb") as full, start(["train", config], full) as process:
        said = process.stderr.read()
    assert process.wait(LONG) == 0 and said == b"" and trained(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("place", "code"), [("gone", 0), ("/dev/full", 2)])
def test_what_is_printed_alone_is_lost_aloud_unless_nobody_reads(config, place, code):
    reader, stdout = os.pipe() if place == "gone" else (None, os.open(place, os.O_WRONLY))
    if reader is not None:
        os.close(reader)
    with start(["plan", config, "--json"], stdout) as process:
        os.close(stdout)
        said = process.stderr.read().decode()
    assert process.wait(LONG) == code and "Traceback" not in said and "Exception ignored" not in said
    assert ("No space left on device" in said) == (code == 2)
