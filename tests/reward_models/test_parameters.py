"""The stated numbers of parameters against the architectures themselves, built without storage."""

from pathlib import Path

import pytest
import torch

from diffrl.models.published import reward_facts
from tests.tiers import daily

FACTS = {name: facts for name, facts in reward_facts().items() if facts["weights"]}
PARAMETERS = {name: facts["weights"] for name, facts in FACTS.items()}
SCRIPTS = Path(__file__).parents[2] / "scripts"
BUILT = ("aesthetic", *dict.fromkeys(repository for counts in PARAMETERS.values() for repository in counts))


@pytest.fixture
def networks(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from measuring import published_scorers

    return published_scorers


@pytest.fixture
def built(request, networks):
    if request.param == "xswu/HPSv2":
        pytest.importorskip("open_clip")
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in networks.BUILT[request.param]().parameters())


@pytest.mark.parametrize(("built", "key"), [(key, key) for key in BUILT], indirect=["built"])
def test_the_numbers_are_those_of_the_architecture(built, key):
    stated = {repository: count for counts in PARAMETERS.values() for repository, count in counts.items()}
    stated["openai/clip-vit-large-patch14"] = PARAMETERS["clip_score"]["openai/clip-vit-large-patch14"]
    stated["aesthetic"] = PARAMETERS["aesthetic"]["openai/clip-vit-large-patch14"]
    assert built == stated[key]


MEASURED = ("image_reward", "clip_score", "pickscore", "hpsv2", "hpsv3", "video_align", "geneval", "aesthetic")
VIEWS = {"geneval_strict": "geneval", "edit_direction": "clip_score", "preservation": "aesthetic"}


@pytest.mark.parametrize("name", daily(MEASURED, [], set(MEASURED) - {"clip_score", "image_reward"}))
def test_what_a_call_takes_is_measured(name, networks):
    """Of live storages on fake tensors; the table is whole MiB."""
    assert networks.sample_bytes(name) == pytest.approx(FACTS[name]["call_bytes"], rel=0.05)


def test_a_reward_that_asks_a_network_of_anothers_takes_as_much():
    assert set(FACTS) == {*MEASURED, *VIEWS}
    assert all(FACTS[name]["call_bytes"] == FACTS[other]["call_bytes"] for name, other in VIEWS.items())
