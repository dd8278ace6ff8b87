"""Keys, redirects, options and the check at the start of the chat client, against a real server on this machine."""

import logging
import socket

import pytest

from reward_models import RewardError
from reward_models.judges.chat import ChatClient
from tests.patience import held_port
from tests.reward_models.judges.judge_server import ask, client, said

KEY = "sk-very-secret-1234567890"


def test_the_key_is_sent_and_never_shown(start, monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    judge = start(
        lambda handler, number, body: (
            handler.reply(401, {"error": {"message": f"bad key {handler.headers['Authorization']}"}})
            if number
            else said()
        )
    )
    asker = client(judge, api_key_env="JUDGE_KEY")
    assert ask(asker)[0].text == "fine"
    assert {headers.get("Authorization") for headers in judge.headers_seen} == {f"Bearer {KEY}"}
    (error,) = ask(asker)
    assert "bad key" in str(error) and "***" in str(error)
    for text in (str(error), repr(error), caplog.text, repr(asker), str(judge.asked)):
        assert KEY not in text


def test_redirects_are_not_followed(start, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    elsewhere = start()
    for status in (302, 308):
        judge = start(
            lambda handler, number, body, status=status: handler.reply(
                status, b"", Location=f"{elsewhere.url}/v1/chat/completions"
            )
        )
        (error,) = ask(client(judge, api_key_env="JUDGE_KEY"))
        assert f"{status}, a redirect" in str(error) and len(judge.asked) == 1
    assert not elsewhere.asked and not elsewhere.headers_seen


def test_a_netrc_file_is_not_read(start, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hidden\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    judge = start(lambda handler, number, body: said())
    ask(client(judge))
    assert all("Authorization" not in headers for headers in judge.headers_seen)


def test_cookies_are_not_kept(start):
    judge = start(lambda handler, number, body: handler.reply(200, said(), Set_Cookie="a=b"))
    asker = client(judge)
    ask(asker), ask(asker)
    assert all("Cookie" not in headers for headers in judge.headers_seen)


def test_a_server_that_is_not_there():
    with held_port() as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(RewardError, match=r"must answer /v1/models .* give check=False"):
            ChatClient(url=url, model="judge")
        (error,) = ask(ChatClient(url=url, model="judge", check=False, retries=1, backoff=0.01))
    assert "Connection refused, 2 attempts" in str(error)


def test_a_server_that_hangs_is_told_at_the_start():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        with pytest.raises(RewardError, match=r"within 0.2 s"):
            ChatClient(url=f"http://127.0.0.1:{deaf.getsockname()[1]}", model="judge", timeout=0.2)


def test_the_model_must_be_served(start):
    with pytest.raises(RewardError, match="has no model 'other'. It has: judge, UnifiedReward"):
        client(start(), model="other")
    with pytest.raises(RewardError, match="It answered 404"):
        client(start(), url=start().url + "/elsewhere")


def test_another_kind_of_server_is_told(start, monkeypatch):
    judge = start()
    monkeypatch.setattr(judge.RequestHandlerClass, "do_GET", lambda handler: handler.reply(200, {"models": []}))
    with pytest.raises(RewardError, match="OpenAI-compatible"):
        client(judge)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"url": "localhost:8000"}, "http"),
        ({"url": "http://host/v1?key=1"}, "without a password or a query"),
        ({"url": []}, "needs a url and a model"),
        ({"timeout": 0}, "timeout of a chat server, in seconds, must be a number of at least 0.001"),
        ({"retries": 1.5}, "retries of a chat server must be a whole number"),
        ({"backoff": float("nan")}, "backoff"),
        ({"deadline": 0}, "deadline of a chat server, in seconds, must be a number"),
        ({"api_key_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE must hold"),
    ],
)
def test_wrong_options_are_told(options, sentence):
    with pytest.raises(RewardError, match=sentence):
        ChatClient(**{"url": "http://127.0.0.1:1", "model": "judge", "check": False, **options})


def test_a_password_in_the_address_is_not_repeated():
    with pytest.raises(RewardError) as caught:
        ChatClient(url="https://me:hidden@host/v1", model="judge", check=False)
    assert "hidden" not in str(caught.value)
