"""Pictures: what may be read and what may not, in every shape that an address can take; thumbnails."""

from __future__ import annotations

import io
import os
import socket

import pytest
from PIL import Image

from diffrl.gallery.errors import GalleryError
from diffrl.gallery.thumbnails import Thumbnails
from tests.gallery.made import make_run

PICTURE = "samples/eval-000000/0-0.webp"
SECRET = b"a secret of this machine"
FORBIDDEN = [
    *("config.yaml", "environment.json", "metrics.jsonl", "samples.sqlite", "summary.json", "log.txt"),
    *(
        "checkpoints/step-000004/policy.safetensors",
        "checkpoints/hidden.png",
        "hidden.png",
        "samples",
        "samples/",
        "",
        ".",
    ),
    *(
        "../secret.png",
        "../../secret.png",
        "samples/../../secret.png",
        "samples/../hidden.png",
        "samples/./../hidden.png",
    ),
    *(
        "%2e%2e/secret.png",
        "..%2fsecret.png",
        "%2e%2e%2fsecret.png",
        "samples/%2e%2e/hidden.png",
        "samples/..%2fhidden.png",
    ),
    *("%252e%252e%252fsecret.png", "..%255csecret.png", "samples/..;/hidden.png", "samples/....//hidden.png"),
    *("..\\secret.png", "samples\\..\\hidden.png", "..%5csecret.png", "samples/eval-000000/..%5c..%5chidden.png"),
    *("/etc/passwd", "//etc/passwd", "%2fetc%2fpasswd", "file:///etc/passwd", "C:/windows/win.ini", "~/secret.png"),
    *("samples/link.png", "samples/folder/secret.png", "samples/eval-000000/0-0.webp%00.png", "hidden.png%00.webp"),
    *("samples/" + "x" * 5000 + ".png", "samples/" + "y/" * 2000 + "z.png", "samples/loop/loop/x.png"),
    *(
        "samples/notes.txt",
        "samples/picture.svg",
        "samples/page.html",
        "samples/picture.webp.html",
        "samples/%ff%fe.png",
    ),
]


@pytest.fixture
def run(made, tmp_path):
    """A run with secrets around it, beside it, in it, and links to them from where pictures lie."""
    (tmp_path / "secret.png").write_bytes(SECRET)
    (made.parent / "secret.png").write_bytes(SECRET)
    for file in ("hidden.png", "checkpoints/hidden.png", "checkpoints/step-000004/policy.safetensors"):
        (made / file).parent.mkdir(parents=True, exist_ok=True)
        (made / file).write_bytes(SECRET)
    for file in ("notes.txt", "picture.svg", "page.html", "picture.webp.html"):
        (made / "samples" / file).write_bytes(SECRET)
    (made / "samples" / "link.png").symlink_to(tmp_path / "secret.png")
    (made / "samples" / "folder").symlink_to(tmp_path, target_is_directory=True)
    (made / "samples" / "loop").symlink_to(made / "samples" / "loop")
    return made


def raw(address: str, path: str) -> bytes:
    """The answer to a request line that no client tidied up."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


def test_pictures_are_given_and_nothing_else(served, run, capfd):
    address = served(run)
    assert raw(address, f"/media/made/{PICTURE}").endswith((run / PICTURE).read_bytes())
    for path in FORBIDDEN:
        for start in ("/media/made/", "/media/made//", "/media/made/samples/../", "/media/%6dade/"):
            for size in ("", "?size=256", "?still=1"):
                received = raw(address, start + path + size)
                status = received.split(b" ", 2)[1]
                assert SECRET not in received, path
                # Too long a line is refused by the server itself; "" and "/" may lead to a page that is not there.
                assert status in (b"404", b"400", b"414"), (status, path)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("key", ["..", ".", "%2e%2e", "none", "made%2f..", "..%2fmade", "made%00", "<script>"])
def test_only_the_sources_that_were_given(served, run, key):
    received = raw(served(run), f"/media/{key}/{PICTURE}")
    assert received.split(b" ", 2)[1] == b"404"


def test_a_picture_that_is_a_link_to_another_of_the_run_is_given(client_of, run):
    (run / "samples" / "best.webp").symlink_to(run / PICTURE)
    assert client_of(run).get("/media/made/samples/best.webp").content == (run / PICTURE).read_bytes()


def test_a_run_that_is_a_link_is_shown(client_of, run, tmp_path):
    (tmp_path / "latest").symlink_to(run, target_is_directory=True)
    assert client_of(tmp_path / "latest").get(f"/media/made/{PICTURE}").status_code == 200


def test_thumbnails_have_one_of_four_sizes(client_of, tmp_path):
    client = client_of(make_run(tmp_path / "runs" / "made", size=300))
    small = client.get(f"/media/made/{PICTURE}?size=128")
    assert small.headers["content-type"] == "image/webp" and "max-age" in small.headers["cache-control"]
    with Image.open(io.BytesIO(small.content)) as image:
        assert image.size == (128, 128)
    whole = client.get(f"/media/made/{PICTURE}").content
    assert client.get(f"/media/made/{PICTURE}?size=512").content == whole  # never made larger
    for size in ("127", "0", "-1", "100000000", "abc", "1e3", "128.5", ""):
        assert client.get(f"/media/made/{PICTURE}?size={size}").status_code == 400, size


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"RIFF\xff\xff\xff\xffWEBPVP8L", os.urandom(2000), b"<svg/>"])
def test_what_is_no_picture_is_a_sign(client_of, run, data):
    (run / PICTURE).write_bytes(data)
    answer = client_of(run).get(f"/media/made/{PICTURE}?size=128")
    assert answer.status_code == 404 and answer.headers["content-type"] == "image/svg+xml"
    assert "missing" in answer.text


def test_a_bomb_is_a_sign(client_of, run):
    """A picture of 900 million pixels in a few kilobytes."""
    Image.new("1", (30_000, 30_000)).save(run / "samples" / "bomb.png")
    assert client_of(run).get("/media/made/samples/bomb.png?size=128").status_code == 404


def test_the_cache_of_thumbnails_is_bounded_and_follows_changes(tmp_path):
    thumbnails = Thumbnails(limit=3000)
    paths = []
    for number in range(20):
        paths.append(tmp_path / f"{number}.png")
        Image.effect_noise((200, 200), 50).save(paths[-1])
        assert thumbnails.get(paths[-1], 128, False)
        assert thumbnails._held == sum(map(len, thumbnails._cache.values()))
        assert len(thumbnails._cache) == 1 or thumbnails._held <= 3000
    before = thumbnails.get(paths[0], 128, False)
    Image.new("RGB", (300, 300), "red").save(paths[0])
    os.utime(paths[0], (1, 1))
    assert thumbnails.get(paths[0], 128, False) != before
    paths[0].unlink()
    with pytest.raises((GalleryError, FileNotFoundError)):
        thumbnails.get(paths[0], 128, False)
