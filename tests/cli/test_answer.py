"""An answer records its text, the worker that served it, and its times."""

import httpx
import pytest

from orcastream.cli.answer import Answer
from orcastream.client.sse import SseParser
from tests.cli.fake_gateway import gateway


async def test_an_answer_keeps_text_worker_and_times() -> None:
    answer = Answer("What?", expected="one two three")
    async with httpx.AsyncClient(transport=gateway(lambda _: ["one", " two", " three"]), base_url="http://x") as client:
        await answer.stream(client, "orca-demo")
    assert answer.ended
    assert answer.correct
    assert (answer.workers, answer.num_tokens, answer.finish_reason) == (["host-1-ab"], 3, "stop")
    assert answer.ttft_s is not None
    assert answer.tbt_s is not None
    assert answer.tokens_per_s is not None


async def test_another_text_is_wrong() -> None:
    answer = Answer("What?", expected="one")
    async with httpx.AsyncClient(transport=gateway(lambda _: ["two"]), base_url="http://x") as client:
        await answer.stream(client, "orca-demo")
    assert not answer.correct


async def test_a_refusal_is_the_answers_error() -> None:
    answer = Answer("What?", expected="one")
    async with httpx.AsyncClient(transport=gateway(lambda _: []), base_url="http://x") as client:
        await answer.stream(client, "another")
    assert answer.ended
    assert not answer.correct
    assert answer.error is not None
    assert answer.error.startswith("404: ")


async def test_a_broken_connection_is_the_answers_error() -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    answer = Answer("What?", expected="one")
    async with httpx.AsyncClient(transport=httpx.MockTransport(broken), base_url="http://x") as client:
        await answer.stream(client, "orca-demo")
    assert answer.error == "refused"


async def test_an_error_in_the_stream_is_the_answers_error() -> None:
    def failing(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b'data: {"error": {"message": "expired"}}\n\n')

    answer = Answer("What?", expected="")
    async with httpx.AsyncClient(transport=httpx.MockTransport(failing), base_url="http://x") as client:
        await answer.stream(client, "orca-demo")
    assert answer.error == "expired"
    assert not answer.correct


@pytest.mark.parametrize(
    ("lines", "events"),
    [
        (["data: a", ""], ["a"]),
        (["data: a", "data: b", ""], ["a\nb"]),
        (["", ""], []),
        ([": a comment", "", "data: a", ""], ["a"]),
        (["id: 3", "event: x", "data:a", ""], ["a"]),
        (["data: a"], []),
    ],
)
def test_server_sent_events(lines: list[str], events: list[str]) -> None:
    parser = SseParser()
    assert [event for line in lines if (event := parser.feed(line)) is not None] == events
