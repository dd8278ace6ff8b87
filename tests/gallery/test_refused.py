"""What the command refuses before it shows or writes anything; and a file of votes of which a part can be read."""

import pytest
from PIL import Image

from diffrl.errors import ConfigError
from diffrl.gallery.command import GalleryRequest, free_port, show_gallery
from diffrl.gallery.votes import Side, add_vote


@pytest.fixture
def images(tmp_path):
    """A folder of two stills without captions."""
    (tmp_path / "images").mkdir()
    for name in ("first", "second"):
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / f"{name}.png")
    return tmp_path / "images"


def exported(tmp_path, images, **options):
    """What an export of the folder says."""
    said = []
    show_gallery(
        GalleryRequest([images], tmp_path / "site", **{"votes": tmp_path / "votes.jsonl", **options}), said.append
    )
    return said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"prompt": "a red circle"}\n', "its only line is no vote"),
        (b'{"prompt": "a red circle"}\n{"prompt": \n', "none of its 2 lines is a vote"),
        (b"\x89PNG\n", "cannot be read"),
    ],
)
def test_a_file_of_other_things_takes_no_votes(tmp_path, images, content, words):
    (tmp_path / "votes.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=words) as refused:
        exported(tmp_path, images)
    assert "votes.jsonl" in str(refused.value) and "ther" in str(refused.value).rpartition(". ")[2]
    assert (tmp_path / "votes.jsonl").read_bytes() == content and not (tmp_path / "site").exists()


def test_a_damaged_file_of_votes_is_told_of_and_used(tmp_path, images):
    sides = [
        Side("images", str(images), "folder-0", ("", 0, 0, 0, name), f"{name}.png") for name in ("first", "second")
    ]
    add_vote(tmp_path / "votes.jsonl", "", "s", *sides, "a", "b")
    with (tmp_path / "votes.jsonl").open("a") as file:
        file.write("damaged\n")
    assert exported(tmp_path, images)[1] == "1 line of the votes could not be read as a vote, and is left out."


@pytest.mark.parametrize(
    ("host", "words"), [("no..such.host", "not known"), ("x" * 70, "not known"), ("192.0.2.1", "another's")]
)
def test_a_host_that_is_not_this_machine_is_no_matter_of_ports(host, words):
    with pytest.raises(ConfigError, match=words) as refused:
        free_port(host, 0)
    assert host in str(refused.value) and "--host" in str(refused.value) and "--port" not in str(refused.value)


@pytest.mark.parametrize(
    ("reward", "words"), [("temporal_flicker", "scores videos. .*first.png is a still"), ("shapes", "first.txt")]
)
def test_an_export_with_a_reward_that_scores_nothing_is_refused(tmp_path, images, monkeypatch, reward, words):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match=f"--reward {reward} scored nothing: .*{words}"):
        exported(tmp_path, images, reward=["sharpness", reward])
    assert not (tmp_path / "site").exists()
