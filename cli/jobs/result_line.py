"""The answer to one line of a bulk job, in OpenAI's form."""

import time
from typing import Any

from orcastream.broker.jobs.result_line import responded
from orcastream.cli.jobs.question import CHAT_URL, Question
from orcastream.client import Choice, Result
from orcastream.schemas.events import Usage


def answered(line_id: str, question: Question, result: Result, model: str) -> bytes:
    """The line's answer."""
    body = {
        "id": result.id,
        "object": "chat.completion" if question.url == CHAT_URL else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [_choice(number, one, question.url) for number, one in enumerate(result.choices)],
        "usage": _usage(result.usage),
    }
    return responded(line_id, question.custom_id, 200, result.id, body)


def _choice(number: int, choice: Choice, url: str) -> dict[str, Any]:
    said = {"message": {"role": "assistant", "content": choice.text}} if url == CHAT_URL else {"text": choice.text}
    return {"index": number, **said, "logprobs": None, "finish_reason": choice.finish_reason}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
