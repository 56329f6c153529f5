"""The valid lines of a bulk job, and the errors for invalid ones."""

import json
from typing import Any

import pytest

from orcastream.cli.jobs.question import CHAT_URL, COMPLETION_URL, Question
from orcastream.schemas.errors import InvalidRequest

MESSAGES = [{"role": "user", "content": "What is 3 + 4?"}]


def read(line: Any, max_tokens: int | None = None) -> Question:
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    return Question.read(raw, 7, model="orca-demo", max_tokens=max_tokens)


def test_a_line_of_openai() -> None:
    body = {"model": "orca-demo", "messages": MESSAGES, "max_completion_tokens": 5, "temperature": 0, "stream": False}
    line = {"custom_id": "a", "method": "POST", "url": CHAT_URL, "body": body}
    question = read(line)
    assert (question.custom_id, question.url, question.prompt) == ("a", CHAT_URL, MESSAGES)
    assert question.parameters == {"max_tokens": 5, "temperature": 0}
    assert read({"custom_id": "a", "body": body}) == question


@pytest.mark.parametrize("prompt", ["What is 3 + 4?", [1, 17, 42]])
def test_a_plain_line(prompt: object) -> None:
    question = read({"prompt": prompt, "seed": None})
    assert (question.custom_id, question.url, question.prompt) == ("request-7", COMPLETION_URL, prompt)
    assert (question.parameters, question.longest) == ({}, 16)
    chat = read({"messages": MESSAGES})
    assert (chat.parameters, chat.longest) == ({}, None)


def test_the_maximum_length_comes_from_the_line_or_the_command() -> None:
    said = read({"prompt": "x", "max_tokens": 9}, 50)
    assert (said.parameters, said.longest) == ({"max_tokens": 9}, None)
    assert read({"prompt": "x"}, 50).longest == 50
    assert read({"prompt": "x", "min_tokens": 40}).longest == 40
    assert read({"messages": MESSAGES}, 50).longest == 50


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"no JSON", "line: got b'no JSON', allowed: a JSON object"),
        (b"[" * 100_000, "line: got "),
        (b'{"prompt": "x", "seed": 1e999}', "line: got "),
        (b'{"prompt": "x", "seed": NaN}', "line: got "),
        ([1], "line: got b'[1]', allowed: a JSON object"),
        ({"prompt": ""}, "prompt: got '', allowed: text or token ids"),
        ({"prompt": ["x"]}, "prompt: got ['x'], allowed: token ids"),
        ({"prompt": [True]}, "prompt: got [True], allowed: token ids"),
        ({"text": "x"}, "messages: got None, allowed: messages"),
        ({"messages": ["x"]}, "messages: got ['x'], allowed: objects with role and content"),
        ({"prompt": "x", "custom_id": 1}, "custom_id: got 1, allowed: 1 to 512 characters"),
        ({"prompt": "x", "model": "gpt"}, "model: got 'gpt', allowed: orca-demo, the served model"),
        ({"prompt": "x", "stream": True}, "stream: got True, allowed: false"),
        ({"prompt": "x", "temprature": 1}, "temprature: got 1, allowed: one of "),
        ({"prompt": "x", "temperature": -1}, "temperature: got -1, allowed: "),
        ({"body": {"prompt": "x"}, "url": "/v1/embeddings"}, "url: got '/v1/embeddings', allowed: /v1/chat"),
        ({"body": {"prompt": "x"}, "method": "GET"}, "method: got 'GET', allowed: POST"),
        (
            {"body": {"prompt": "x"}, "max_tokens": 5},
            "max_tokens: got 5, allowed: only custom_id, method, url and body",
        ),
        ({"prompt": "x", "custom_id": "\ud800"}, r"custom_id: got '\ud800', allowed: UTF-8 text"),
        ({"prompt": "Count \ud83d"}, r"prompt: got 'Count \ud83d', allowed: UTF-8 text"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, r"messages.0.content: got '\ud83d', allowed: UTF-8"),
        ({"messages": [{**MESSAGES[0], "name": "\ud83d"}]}, r"messages.0.name: got '\ud83d', allowed: UTF-8"),
        ({"prompt": "x", "min_tokens": "5"}, "min_tokens: got '5', allowed: an integer"),
        ({"prompt": "x", "constraint": {"choice": 5}}, "constraint.choice: got 5, allowed: an array"),
        ({"body": {"prompt": "x"}, "url": ["/v1"]}, "url: got ['/v1'], allowed: /v1/chat"),
        ({"body": "x"}, "body: got 'x', allowed: a JSON object"),
    ],
)
def test_errors_name_the_faulty_field(line: Any, complaint: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(line)
    assert str(caught.value).startswith(complaint)
