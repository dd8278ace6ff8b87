"""How a reward server is set up, and which mistakes are told before it listens."""

import socket
from urllib.parse import urlsplit

import pytest

from reward_models import RewardError
from reward_models.serving.server import _listen, background, make_app, serve
from tests.reward_models.serving.test_microbatch import Mean, request
from tests.reward_models.serving.test_server import TOKEN, health, post


def test_an_open_address_needs_a_token(monkeypatch):
    monkeypatch.delenv("DIFFRL_REWARD_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "rewards.example.org"):
        with pytest.raises(RewardError, match="needs a token"):
            serve({"mean": Mean()}, host=host, port=0)
    with background({"mean": Mean()}, host="0.0.0.0", allow_anonymous=True) as url:
        assert health(url)["ready"]


def test_tokens_come_from_a_file_or_the_environment(monkeypatch, tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with background({"mean": Mean()}, token_file=file) as url:
        assert post(url, request(1)).status_code == 401
        assert post(url, request(1), Authorization=f"Bearer {TOKEN}").status_code == 200
    monkeypatch.setenv("DIFFRL_REWARD_TOKEN", TOKEN)
    with background({"mean": Mean()}) as url:
        assert post(url, request(1)).status_code == 401
    for wrong in ({"token": ""}, {"token": "short"}, {"token": "with a space"}, {"token_file": tmp_path / "none"}):
        with pytest.raises(RewardError, match="token"), background({"mean": Mean()}, **wrong):
            pass


def test_set_up_mistakes_are_told():
    with background({"mean": Mean()}) as url, pytest.raises(RewardError, match="cannot listen on"):
        serve({"mean": Mean()}, port=urlsplit(url).port)
    for wrong, words in (({"a/b": Mean()}, "a/b"), ({}, "no rewards")):
        with pytest.raises(RewardError, match=words):
            make_app(wrong)
    with pytest.raises(RewardError, match="max_bodies is not a known key"):
        make_app({"mean": Mean()}, max_bodies=1)


def test_answers_do_not_wait_for_acknowledgements():
    """asyncio switches Nagle's algorithm off for sockets that name TCP, and only for them."""
    for host in ("127.0.0.1", "localhost"):
        with _listen(host, 0) as listener, socket.create_connection(listener.getsockname()[:2]):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.proto == socket.IPPROTO_TCP
