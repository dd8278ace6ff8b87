"""The test of the design: an objective that nothing in the library knows is a file and a line in the registry."""

import subprocess
import sys

import pytest
import yaml

from tests.conftest import ROOT
from tests.training.harness import settings


@pytest.mark.long
def test_an_objective_of_a_line_in_the_registry_trains_and_a_wrong_line_is_one_sentence(random_sd3, tmp_path):
    """In processes of their own: the registry is read with the configuration."""
    data = settings(random_sd3, tmp_path, track={"trees": {"prompts": 1}}, objective={"kind": "imitation"})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(data))

    def run(line):
        command = [sys.executable, "-m", "tests.training.imitation", line, str(tmp_path / "run.yaml")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        return done.returncode, done.stderr

    code, said = run("tests.training.imitation:ImitationSettings")
    assert code == 0, said
    code, said = run("tests.training.imitation:Absent")
    assert code == 2 and said.startswith("error: objective.kind 'tests.training.imitation:Absent' cannot be imported: ")
    assert said.count("\n") == 1
