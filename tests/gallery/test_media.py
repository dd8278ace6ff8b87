"""Pictures: what may be read and what may not, in every shape that an address can take; thumbnails."""

from __future__ import annotations

import io
import random
import socket
import struct
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image, ImageFile

from diffrl.gallery import thumbnails
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.thumbnails import Thumbnails, blind_image
from tests.gallery.made import make_run
from tests.patience import LONG

PICTURE = "samples/eval-000000/0-0.webp"
SECRET = b"a secret of this machine"
FORBIDDEN = [
    *("config.yaml", "environment.json", "metrics.jsonl", "samples.sqlite", "summary.json", "log.txt"),
    *("before_after.png", "curve.png"),
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
    hidden = ("hidden.png", "before_after.png", "curve.png", "checkpoints/hidden.png")
    for file in (*hidden, "checkpoints/step-000004/policy.safetensors"):
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
    with socket.create_connection((host, int(port)), LONG) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


def test_pictures_are_given_and_nothing_else(served, run, capfd):
    address = served(run)
    (run / "samples" / "best.webp").symlink_to(run / PICTURE)
    assert raw(address, "/media/made/samples/best.webp").endswith((run / PICTURE).read_bytes()), "a link within"
    for key in ("..", ".", "%2e%2e", "none", "made%2f..", "..%2fmade", "made%00", "<script>"):
        assert raw(address, f"/media/{key}/{PICTURE}").split(b" ", 2)[1] == b"404", key
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


def test_thumbnails_have_one_of_four_sizes(client_of, tmp_path):
    client = client_of(make_run(tmp_path / "runs" / "made", size=300))
    small = client.get(f"/media/made/{PICTURE}?size=128")
    assert small.headers["content-type"] == "image/webp" and small.headers["cache-control"] == "private, no-cache"
    with Image.open(io.BytesIO(small.content)) as image:
        assert image.size == (128, 128)
    whole = client.get(f"/media/made/{PICTURE}").content
    assert client.get(f"/media/made/{PICTURE}?size=512").content == whole  # never made larger
    for size in ("127", "0", "-1", "100000000", "abc", "1e3", "128.5", ""):
        assert client.get(f"/media/made/{PICTURE}?size={size}").status_code == 400, size


NOISE = random.Random(0).randbytes(2000)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"RIFF\xff\xff\xff\xffWEBPVP8L", NOISE, b"<svg/>"])
def test_what_is_no_picture_is_a_sign(client_of, run, data):
    (run / PICTURE).write_bytes(data)
    answer = client_of(run).get(f"/media/made/{PICTURE}?size=128")
    assert answer.status_code == 404 and answer.headers["content-type"] == "image/svg+xml"
    assert "missing" in answer.text


def test_a_bomb_is_a_sign(client_of, run, monkeypatch):
    """A few kilobytes of very many pixels: told before they are decoded, whether Pillow would refuse them or not."""
    client = client_of(run)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: pytest.fail("decoded"))
    for side in (7072, 30_000):  # just above 50 million, and more than Pillow opens
        (run / "samples" / "bomb.png").write_bytes(bomb(side))
        answer = client.get("/media/made/samples/bomb.png?size=128")
        assert answer.status_code == 413 and answer.headers["content-type"] == "image/svg+xml"
        assert "too large" in answer.text
    with pytest.raises(GalleryError):
        blind_image(run / "samples" / "bomb.png", run / PICTURE)
    (run / "samples" / "bomb.png").write_bytes(bomb(7072))
    assert "7,072 x 7,072 pixels" in client.get("/media/made/samples/bomb.png?size=128").text


def bomb(side: int) -> bytes:
    """A PNG's header, and no pixels behind it."""
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = [
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in (head, b"IDAT")
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_each_picture_is_made_once_and_two_at_a_time(tmp_path, monkeypatch):
    """Twelve threads ask for three pictures; the first two wait in the decoder for one another, and for a third."""
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for path in paths:
        Image.effect_noise((200, 200), 50).save(path)
    inside, most, calls, lock = [0], [0], [], threading.Lock()
    full, third = threading.Event(), threading.Event()
    upright = thumbnails.upright

    def wait(image):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            calls.append(image.filename)
            if inside[0] >= 2:
                full.set()
            if inside[0] >= 3:
                third.set()
        assert full.wait(LONG)
        third.wait(0.2)  # nobody comes; a third one would come at once
        with lock:
            inside[0] -= 1
        return upright(image)

    monkeypatch.setattr(thumbnails, "upright", wait)
    made = Thumbnails()
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda number: made.get(paths[number % 3], 128, False), range(12)))
    assert len(calls) == 3 and most[0] == 2
    assert len(set(found)) == 3 and None not in found
    kept = made._kept
    assert kept._held == sum(map(len, kept._kept.values())) and not kept._making


def test_browsers_ask_again_and_get_new_pictures_only(client_of, tmp_path):
    run = make_run(tmp_path / "runs" / "made", size=300)
    client = client_of(run)
    for query in ("", "?size=128", "?size=512", "?size=128&still=1"):
        address = f"/media/made/{PICTURE}{query}"
        first = client.get(address)
        mark = first.headers["etag"]
        for held in (mark, f"W/{mark}", f'"x", {mark}'):
            again = client.get(address, headers={"if-none-match": held})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", mark)
            assert again.headers["cache-control"] == "private, no-cache"
        assert client.get(address, headers={"if-none-match": '"other"'}).content == first.content
        Image.effect_noise((300, 300), 40 + len(query)).save(run / PICTURE)
        new = client.get(address, headers={"if-none-match": mark})
        assert new.status_code == 200 and new.content != first.content and new.headers["etag"] != mark
    marks = {
        client.get(f"/media/made/{PICTURE}{q}").headers["etag"] for q in ("", "?size=128", "?size=256", "?still=1")
    }
    assert len(marks) == 4
    (run / PICTURE).unlink()
    assert client.get(address, headers={"if-none-match": new.headers["etag"]}).status_code == 404


@pytest.mark.browser
@pytest.mark.long
def test_the_browser_shows_the_new_picture_and_turns_as_the_thumbnails_do(served, tmp_path, page):
    """Pictures 400 wide and 100 high, with EXIF data that tell to turn them or are broken."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    suffixes = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}
    picture, turned = Image.new("RGB", (400, 100), "red"), Image.Exif()
    turned[0x0112] = 6
    for format, suffix in suffixes.items():
        picture.save(folder / f"turned.{suffix}", format, exif=turned)
        picture.save(folder / f"broken.{suffix}", format, exif=b"Exif\0\0garbage")
    address = served(folder)
    shape = "[...document.images].map(i => [i.naturalWidth, i.naturalHeight])"
    for name in ("turned", "broken"):
        for suffix in suffixes.values():
            sizes = []
            for query in ("", "?size=512", "?size=128"):
                page.goto(f"{address}/media/pictures/{name}.{suffix}{query}")
                sizes += page.evaluate(shape)
            assert sizes[0] == sizes[1] and len(sizes) == 3
            assert (sizes[0][0] > sizes[0][1]) == (sizes[2][0] > sizes[2][1]), (name, suffix, sizes)
            upright = (name, suffix) in (("turned", "jpg"), ("turned", "png"))
            assert (sizes[0][0] < sizes[0][1]) == upright
            shown, kind = blind_image(folder / f"{name}.{suffix}", folder / f"{name}.{suffix}")
            assert list(Image.open(io.BytesIO(shown)).size) == sizes[0] and kind == "image/png"
    assert "compare" in show(page, f"{address}/compare")
    for suffix in suffixes.values():
        Image.new("RGB", (77, 77), "blue").save(folder / f"broken.{suffix}")
    show(page, f"{address}/compare")
    assert page.evaluate("[...document.images].filter(i => i.naturalWidth === 77).length") == 3


def show(page, address: str) -> str:
    """Go to a page and wait until all its pictures are there."""
    page.goto(address)
    page.wait_for_function("document.images.length && [...document.images].every(i => i.complete && i.naturalWidth)")
    return page.url
