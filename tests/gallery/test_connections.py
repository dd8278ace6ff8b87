"""Clients that send half a form or go away, and a server that ends meanwhile: a line in the log, no traceback."""

import socket
from urllib.parse import urlsplit

from diffrl.gallery import app as app_module
from diffrl.gallery import forms
from diffrl.gallery.app import serve
from reward_models.serving.connections import Connection
from tests.patience import LONG, until

FORM = b"POST /vote HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nsession="


def line_to(url):
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), LONG)


def tracebacks(caplog):
    return [record for record in caplog.records if record.exc_info]


def test_a_form_that_does_not_arrive_is_told_so(served, made, monkeypatch, caplog):
    monkeypatch.setattr(forms, "BODY_SECONDS", 0.05)
    with line_to(served(made)) as line:
        line.sendall(FORM)
        assert b" 408 " in line.recv(100)
    assert not tracebacks(caplog)


def test_a_client_that_goes_away_in_its_form_is_no_mistake_of_the_gallery(served, made, monkeypatch, caplog):
    begun, body_of = [], forms._body_of

    async def watched(request):
        begun.append(1)
        try:
            return await body_of(request)
        finally:
            begun.append(2)

    monkeypatch.setattr(forms, "_body_of", watched)
    url = served(made)
    with line_to(url) as line:
        line.sendall(FORM)
        until(lambda: begun)
    until(lambda: len(begun) == 2)
    with line_to(url) as line:  # one more, so that what is logged of the first is there
        line.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        while line.recv(65536):
            pass
    assert not tracebacks(caplog)


def test_the_gallery_watches_its_connections(site_of, made, monkeypatch):
    import uvicorn

    configs = []
    monkeypatch.setattr(app_module.os, "nice", lambda step: None)
    monkeypatch.setattr(uvicorn.Server, "run", lambda server: configs.append(server.config))
    serve(site_of(made), "127.0.0.1", 1, lambda: None)
    assert configs[0].http is Connection
