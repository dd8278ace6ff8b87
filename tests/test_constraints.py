"""What a fresh machine installs is what pyproject.toml asks for, and the oldest environment is its lower bounds."""

import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def asked():
    """Every requirement of the library and of the `dev` extra, those of extras within it included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    waiting, found = [*project["dependencies"], *extras["dev"]], []
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name == project["name"]:
            waiting += [line for extra in requirement.extras for line in extras[extra]]
        else:
            found.append(requirement)
    return found


def installed(name, python):
    """Package -> version on Linux with this Python."""
    lines = (ROOT / "scripts" / "constraints" / name).read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if not line.startswith("#")]
    where = {**default_environment(), "python_version": python, "python_full_version": f"{python}.5"}
    here = [entry for entry in pinned if entry.marker is None or entry.marker.evaluate(where)]
    versions = {canonicalize_name(entry.name): str(entry.specifier).removeprefix("==") for entry in here}
    assert len(versions) == len(here), "a package twice"
    return versions


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_what_was_tested_is_what_is_asked_for(python):
    versions = installed("tested.txt", python)
    assert not [str(r) for r in asked() if not r.specifier.contains(versions.get(canonicalize_name(r.name), ""))]


def test_the_oldest_are_the_lower_bounds():
    versions = installed("oldest.txt", "3.11")
    bounds = {canonicalize_name(r.name): str(r.specifier).removeprefix(">=") for r in asked() if r.specifier}
    padded = {name: (versions[name] + ".0" * 3).split(".")[:3] for name in bounds}
    assert padded == {name: (bound + ".0" * 3).split(".")[:3] for name, bound in bounds.items()}
