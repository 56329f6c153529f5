"""`orcastream chat` with piped input keeps the conversation and reports errors in one line."""

from pathlib import Path

import httpx
import pytest

from orcastream.cli.main import main
from orcastream.schemas.stopping import FinishReason
from tests.cli.chat.conftest import asked, piped
from tests.gateway.conftest import Stage
from tests.gateway.scripted_worker import Answer


async def test_piped_lines_are_one_conversation(stage: Stage, tmp_path: Path) -> None:
    worker = await stage.worker("Aha.")
    gateway = await stage.gateway()
    code, out, err = await piped(tmp_path, gateway.url, "Hello\n\n And now? \n", "--system", "Be brief.")
    assert (code, out, err) == (0, "Aha.\nAha.\n", "")
    first, second = (asked(stage, request) for request in worker.requests)
    assert "Be brief." in first
    assert "And now?" not in first
    assert [second.index(part) for part in ("Be brief.", "Hello", "Aha.", "And now?")] == sorted(
        second.index(part) for part in ("Be brief.", "Hello", "Aha.", "And now?")
    )


async def test_a_refusal_is_reported_and_forgotten(stage: Stage, tmp_path: Path) -> None:
    worker = await stage.worker("Aha.")
    gateway = await stage.gateway()
    code, out, err = await piped(tmp_path, gateway.url, "x" * 2000 + "\nHello\n", "--max-tokens", "9")
    assert (code, out) == (1, "Aha.\n")
    assert err.startswith("orcastream chat: messages: got ")
    assert err.count("\n") == 1
    [request] = worker.requests
    assert "x" not in asked(stage, request)
    code, out, err = await piped(tmp_path, gateway.url, "Hello\n", "--served-model-name", "another")
    assert (code, out) == (1, "")
    assert err.startswith("orcastream chat: The model 'another' does not exist")


async def test_a_full_context_forgets_the_oldest_turns_and_says_so(stage: Stage, tmp_path: Path) -> None:
    """The tiny model takes 256 tokens, about as many characters."""
    worker = await stage.worker("Aha.")
    gateway = await stage.gateway()
    questions = [f"{number} " + "abcdefghij" * 4 for number in range(20)]
    code, out, err = await piped(tmp_path, gateway.url, "\n".join(questions) + "\n")
    assert (code, out) == (0, "Aha.\n" * 20)
    last = asked(stage, worker.requests[-1])
    assert "19 abc" in last
    assert "18 abc" in last
    assert "10 abc" not in last
    told = err.splitlines()
    assert told
    assert all(line.startswith("orcastream chat: the context is full: the oldest ") for line in told)


async def test_an_answer_that_fills_the_context_makes_room_for_the_next_question(stage: Stage, tmp_path: Path) -> None:
    ids = stage.tokenizer.encode("Aha.")
    worker = await stage.worker(Answer([ids], finish_reason=FinishReason.LENGTH))
    gateway = await stage.gateway()
    code, out, err = await piped(tmp_path, gateway.url, "one\ntwo\n")
    assert (code, out) == (0, "Aha.\nAha.\n")
    assert "one" not in asked(stage, worker.requests[1])
    ends = "orcastream chat: the context is full, and so the answer ends here\n"
    forgets = "orcastream chat: the context is full: the oldest question and its answer are forgotten\n"
    assert err == ends + forgets + ends


def test_no_gateway_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", "http://127.0.0.1:1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("orcastream chat: no model at http://127.0.0.1:1: The gateway cannot be reached: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("--url", "http://127.0.0.1:80x"),
            "url (--url, ORCASTREAM_URL): got 'http://127.0.0.1:80x', allowed: http://H",
        ),
        (("--url", "http://u:word@h:80x"), "url (--url, ORCASTREAM_URL): got 'http://***@h:80x', allowed: http://HOST"),
        (("--url", "http://u:word@h:80"), "url (--url, ORCASTREAM_URL): got 'http://***@h:80', allowed: http://HOST"),
        (("--url", "127.0.0.1:8000"), "url (--url, ORCASTREAM_URL): got '127.0.0.1:8000', allowed: "),
        (("--api-key", "schlüssel"), "api_key (--api-key, ORCASTREAM_API_KEY): got a secret, allowed: printable ASCII"),
    ],
)
def test_a_wrong_setting_is_one_line(arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"orcastream chat: {line}")
    assert error.count("\n") == 1


def test_a_server_that_is_no_gateway_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = httpx.MockTransport(lambda _: httpx.Response(200, text="<html>"))
    client = httpx.AsyncClient
    monkeypatch.setattr(
        "orcastream.client.models.httpx.AsyncClient", lambda **options: client(transport=page, **options)
    )
    assert main(["chat", "--url", "http://host:3000"]) == 2
    assert capsys.readouterr().err == (
        "orcastream chat: no model at http://host:3000: The server at this URL is not a gateway.\n"
    )
