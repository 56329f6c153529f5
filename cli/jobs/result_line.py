"""The answer to one line of a bulk job, in OpenAI's batch format."""

import time
from typing import Any

from orcastream.broker.jobs.result_line import responded
from orcastream.cli.jobs.question import CHAT_URL, Question
from orcastream.cli.jobs.told_choice import choice_logprobs, prompt_fields
from orcastream.client import Choice, Result
from orcastream.gateway.openai.encoded_json import encoded
from orcastream.schemas.events import Usage
from orcastream.text.tokenizer import Tokenizer


def answered(line_id: str, question: Question, result: Result, model: str, tokenizer: Tokenizer) -> bytes:
    """Return the line's answer."""
    of_prompt = prompt_fields(tokenizer, result.prompt_logprobs, question.parameters.get("prompt_logprobs"))
    choices = [_choice(number, one, question.url, tokenizer) for number, one in enumerate(result.choices)]
    body = {
        "id": result.id,
        "object": "chat.completion" if question.url == CHAT_URL else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{**choice, **of_prompt} for choice in choices],
        "usage": _usage(result.usage),
    }
    return responded(line_id, question.custom_id, 200, result.id, encoded(body))


def _choice(number: int, choice: Choice, url: str, tokenizer: Tokenizer) -> dict[str, Any]:
    told = choice_logprobs(tokenizer, choice, is_chat=url == CHAT_URL)
    said = {"message": {"role": "assistant", "content": choice.text}} if url == CHAT_URL else {"text": choice.text}
    return {"index": number, **said, "logprobs": told, "finish_reason": choice.finish_reason}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
