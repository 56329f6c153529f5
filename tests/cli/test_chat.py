"""`orcastream chat` keeps the conversation, streams, and survives what a gateway says."""

import io

import httpx
import pytest

import cli.chat
from cli.main import main
from tests.cli.fake_gateway import gateway


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """The messages of every request that the fake gateway got; it answers with how many there were."""
    seen: list[list[dict[str, str]]] = []

    def reply(messages: list[dict[str, str]]) -> list[str]:
        seen.append(messages)
        return [str(len(messages)), " messages"]

    client = httpx.Client
    monkeypatch.setattr(cli.chat.httpx, "Client", lambda **options: client(transport=gateway(reply), **options))
    return seen


def say(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_piped_lines_are_one_conversation(
    asked: list[list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch, "Hello\n\nAnd now?\n")
    assert main(["chat", "--system", "Be brief."]) == 0
    assert capsys.readouterr().out == "2 messages\n4 messages\n"
    assert [message["content"] for message in asked[1]] == ["Be brief.", "Hello", "2 messages", "And now?"]
    assert [message["role"] for message in asked[1]] == ["system", "user", "assistant", "user"]


def test_a_refusal_is_told_and_forgotten(
    asked: list[list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch, "Hello\n")
    assert main(["chat", "--served-model-name", "another"]) == 1
    assert capsys.readouterr().err == "orcastream chat: the gateway answers 404: model: got 'another'\n"
    assert asked == []


def test_no_gateway_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    say(monkeypatch, "Hello\n")
    assert main(["chat", "--url", "http://127.0.0.1:1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("orcastream chat: no answer from the gateway at http://127.0.0.1:1: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("--url", "http://127.0.0.1:80x"),
            "url (--url, ORCASTREAM_URL): got 'http://127.0.0.1:80x', allowed: http://H",
        ),
        (("--url", "http://u:word@h:80x"), "url (--url, ORCASTREAM_URL): got 'http://***@h:80x', allowed: http://HOST"),
        (("--url", "127.0.0.1:8000"), "url (--url, ORCASTREAM_URL): got '127.0.0.1:8000', allowed: "),
        (("--api-key", "schlüssel"), "api_key (--api-key, ORCASTREAM_API_KEY): got a secret, allowed: printable ASCII"),
    ],
)
def test_a_wrong_setting_is_one_line(
    arguments: tuple[str, ...], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch, "Hello\n")
    assert main(["chat", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"orcastream chat: {line}")
    assert error.count("\n") == 1


def test_what_answers_like_no_gateway_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = httpx.MockTransport(lambda _: httpx.Response(200, text="<html>"))
    client = httpx.Client
    monkeypatch.setattr(cli.chat.httpx, "Client", lambda **options: client(transport=page, **options))
    say(monkeypatch, "Hello\n")
    assert main(["chat", "--url", "http://host:3000"]) == 2
    assert capsys.readouterr().err == (
        "orcastream chat: url (--url, ORCASTREAM_URL): got 'http://host:3000', allowed: a gateway's; this is none\n"
    )
