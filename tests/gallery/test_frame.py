"""What every answer has, whatever the page: headers, names it listens to, messages in place of failures."""

from __future__ import annotations

import logging
import math
import socket
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from diffrl.errors import DiffrlError
from diffrl.gallery import answers
from diffrl.gallery import app as server
from diffrl.gallery.app import STATIC, make_app
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import finite
from diffrl.gallery.records import Answer
from diffrl.gallery.site import PAGES


def page_of(site, query):
    return Answer(f"<p>{query.text('a')}</p>")


def refused(site, query):
    raise GalleryError("Columns are states. Got <none>.", 404)


def unreadable(site, query):
    raise DiffrlError("The tree <3> cannot be read.")


def gone(site, query):
    Path("/nowhere/at all").read_text()


def mistaken(site, query):
    return {}["missing"]


def half(site, query):
    return Answer("<p>\ud83d half an emoji</p>")


@pytest.fixture
def small(monkeypatch, client_of, made):
    """A client of a gallery with one more page, from this module; and the log forgets what it noted."""
    monkeypatch.setattr(answers, "_noted", set())

    def client(function: str) -> TestClient:
        monkeypatch.setitem(PAGES, "run", f"{__name__}:{function}")
        return client_of(made)

    return client


def test_every_answer_has_the_policy(small):
    client = small("page_of")
    for path in ("/run", "/none", "/media/made/none.png", "/static/gallery.css", "/state", "/media/made/x.png?size=a"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"], path
        assert "script-src" not in headers["content-security-policy"]  # so that of default-src holds: no inline script
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    assert client.get("/run").headers["cache-control"] == "no-store"


def test_only_loopback_names_are_answered(small):
    client = small("page_of")
    for host in ("127.0.0.1:8181", "localhost", "localhost:9", "[::1]:8181", "[::1]"):
        assert client.get("/run", headers={"host": host}).status_code == 200, host
    for host in ("evil.example", "evil.example:8181", "127.0.0.1.evil.example", "10.0.0.1", ""):
        for path in ("/run", "/state", "/media/made/before_after.png", "/static/gallery.css"):
            assert client.get(path, headers={"host": host}).status_code == 400, host


@pytest.fixture
def open_to_all(site_of, made, monkeypatch):
    """A client of a gallery that listens on every address of a machine with names that are known."""
    server.full_name.cache_clear()
    monkeypatch.setattr(socket, "gethostname", lambda: "Box")
    monkeypatch.setattr(socket, "getfqdn", lambda name="": "box.lab.example")
    yield TestClient(make_app(site_of(made), host="0.0.0.0"), base_url="http://10.1.2.3")
    server.full_name.cache_clear()


OWN = ["10.1.2.3", "10.1.2.3:8181", "[2001:db8::1]:8181", "localhost:8181", "127.0.0.1", "box", "BOX:80", "box.local"]
OWN += ["box.lab.example", "box.lab.example.:8181"]
FOREIGN = ["evil.example", "evil.example:8181", "10.1.2.3.evil.example", "box.evil.example", "localhost.evil.example"]
FOREIGN += ["", "1.2.3", "10.1.2.3:evil", "[::1", "0x7f.1.evil.example", "box:8181:1", "evil.example@10.1.2.3"]
FOREIGN += ["10.1.2.3 x"]


def test_another_address_answers_to_the_names_of_its_machine_alone(open_to_all):
    """A page elsewhere could point its own name here, and read what the browser of somebody inside may see."""
    for host in OWN:
        for path in ("/state", "/static/gallery.css"):
            assert open_to_all.get(path, headers={"host": host}).status_code == 200, host
    for host in FOREIGN:
        for path in ("/state", "/static/gallery.css", "/media/made/samples/eval-000000/0-0.webp", "/"):
            answer = open_to_all.get(path, headers={"host": host})
            assert answer.status_code == 400 and "names and addresses of its own machine" in answer.text, host
            assert "made" not in answer.text and answer.headers["content-type"].startswith("text/plain")
            assert "content-security-policy" in answer.headers


def test_the_name_that_was_given_is_answered(site_of, made, monkeypatch):
    monkeypatch.setattr(server, "full_name", lambda: "else.example")
    client = TestClient(make_app(site_of(made), host="Gallery.example"), base_url="http://gallery.example:8181")
    assert client.get("/state").status_code == 200
    assert client.get("/state", headers={"host": "example"}).status_code == 400


@pytest.mark.parametrize(
    ("function", "status", "words"),
    [
        ("refused", 404, "Columns are states. Got &lt;none&gt;."),
        ("unreadable", 503, "The tree &lt;3&gt; cannot be read."),
        ("gone", 503, "/nowhere/at all cannot be read: No such file or directory."),
    ],
)
def test_what_cannot_be_shown_is_a_page_that_says_so(small, caplog, function, status, words):
    answer = small(function).get("/run")
    assert answer.status_code == status and words in answer.text and 'role="alert"' in answer.text
    assert not caplog.records


def test_a_mistake_of_ours_is_told_and_noted_once(small, caplog):
    client = small("mistaken")
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            answer = client.get("/run")
            assert answer.status_code == 500 and "Please report it" in answer.text and "KeyError" in answer.text
    assert "Traceback" not in answer.text and "missing" not in answer.text
    assert len(caplog.records) == 1 and caplog.records[0].exc_info
    assert "content-security-policy" in answer.headers


def test_half_a_character_does_not_stop_a_page(small):
    answer = small("half").get("/run")
    assert answer.status_code == 200 and answer.text == "<p>? half an emoji</p>"


def test_what_is_not_there_is_a_page_that_says_so(small):
    client = small("page_of")
    for path in ("/none", "/a/b/c", "/openapi.json", "/docs", "/favicon.ico", "/.git/config", "/%00"):
        answer = client.get(path)
        assert answer.status_code == 404 and 'role="alert"' in answer.text, path


def test_pages_are_only_got(client_of, made):
    client = client_of(made)
    for name in ["", *(name for name in PAGES if name != "home")]:
        for method in ("HEAD", "POST", "PUT", "DELETE", "PATCH"):
            assert client.request(method, f"/{name}").status_code == 405, (method, name)
    assert client.post("/media/made/samples/eval-000000/0-0.webp").status_code == 405


def test_the_galleries_own_files_and_no_others(client_of, made):
    client = client_of(made)
    for path in STATIC.rglob("*.*"):
        assert client.get(f"/static/{path.relative_to(STATIC)}").content == path.read_bytes()
    for path in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "vendor/../../app.py", "/etc/passwd", "..\\app.py"):
        answer = client.get(f"/static/{path}")
        assert answer.status_code == 404 and b"import" not in answer.content


def test_a_mistake_in_another_route_is_told_too(site_of, made, monkeypatch):
    monkeypatch.setattr(answers, "_noted", set())
    site = site_of(made)
    app = make_app(site)

    @app.post("/vote-here")
    def vote() -> None:
        raise ZeroDivisionError("nothing")

    answer = TestClient(app, base_url="http://127.0.0.1").post("/vote-here")
    assert answer.status_code == 500 and "ZeroDivisionError" in answer.text and "<title>" in answer.text


@pytest.mark.parametrize(
    ("value", "number"),
    [(1, 1.0), (-0.5, -0.5), (10**300, 1e300), (True, None), (False, None), ("1", None), (None, None), ([1], None)]
    + [(10**400, None), (-(10**400), None), (math.inf, None), (-math.inf, None), (math.nan, None)],
)
def test_what_counts_as_a_number(value, number):
    assert finite(value) == number and type(finite(value)) in (float, type(None))
