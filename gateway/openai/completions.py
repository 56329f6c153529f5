"""/v1/completions: continues a plain prompt."""

from collections.abc import Sequence
from typing import Any, Final

from orcastream.gateway.openai.body import Body
from orcastream.gateway.openai.endpoint import ChoicesEndpoint, Json, Logprobs
from orcastream.gateway.openai.logprobs import completion_logprobs
from orcastream.gateway.openai.opening import Opening
from orcastream.gateway.openai.parts import Part
from orcastream.gateway.openai.prompt import Prompt, Text, TokenIds
from orcastream.gateway.openai.prompt_logprobs import PromptLogprobs
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.limits import MAX_LOGPROBS, MAX_TOKEN_ID
from orcastream.schemas.utf8_text import check_text
from orcastream.telemetry import names

_ALLOWED: Final = "text, an array of token ids, or an array of such prompts"
MAX_PROMPTS: Final = 128
"""In one request; each is queued, runs and counts as a separate request."""


class Completions(ChoicesEndpoint):
    """See ChoicesEndpoint."""

    path = "/v1/completions"
    summary = "The completions of one or more prompts."
    body_name = "CompletionRequest"
    answer_name = "Completion"
    id_prefix = "cmpl-"
    operation = names.OPERATION
    whole_object = chunk_object = "text_completion"
    prompt_name = "prompt"
    default_max_tokens = 16
    """OpenAI's default."""
    splits = False
    own_names = frozenset({"prompt", "echo", "logprobs", "prompt_logprobs"})

    def take_prompts(self, body: Body) -> list[Prompt]:
        """Take text or an array of token ids, or an array of several of them."""
        value = body.take("prompt")
        if not isinstance(value, list) or not value or not isinstance(value[0], str | list):
            return [_prompt("prompt", value)]
        if len(value) > MAX_PROMPTS:
            raise InvalidRequest("prompt", f"{len(value)} prompts", f"at most {MAX_PROMPTS} prompts")
        if len(value) == 1:
            return [_prompt("prompt", value[0])]
        return [_prompt(f"prompt.{number}", each) for number, each in enumerate(value)]

    def take_parameters(self, body: Body) -> Json:
        """Take `logprobs` and `prompt_logprobs` (how many likeliest tokens to return in addition to the actual one)
        and `echo`, which extends `logprobs` to the prompt.
        """
        logprobs, echo = body.take("logprobs"), body.take("echo", False)
        if not isinstance(echo, bool):
            raise InvalidRequest("echo", echo, "true or false")
        taken = {} if logprobs is None or logprobs is False else {"logprobs": _count("logprobs", logprobs)}
        own = body.take("prompt_logprobs")
        told = own if own is None else _count("prompt_logprobs", own)
        body.echo, body.opening = echo, Opening("", taken.get("logprobs") if echo else None, told)
        wanted = [count for count in (body.opening.logprobs, told) if count is not None]
        if not wanted:
            return taken
        if told is None:
            body.names["prompt_logprobs"] = "logprobs"
        return {**taken, "prompt_logprobs": max(wanted)}

    def prompt_schema(self) -> Json:
        """Return the schema: text or token ids, or several of them."""
        ids = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}}
        one = {"anyOf": [{"type": "string", "minLength": 1}, ids]}
        return {"anyOf": [*one["anyOf"], {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": one}]}

    def own_schemas(self, common: Json) -> Json:
        """Return the schemas of echo and the log probabilities."""
        told = "Log probability of each token, and of this many likeliest ones; false: none."
        return {
            "max_tokens": {
                **common["max_tokens"],
                "description": "Longest answer; 0: none, only with echo.",
            },
            "echo": {"type": "boolean", "description": "Begin each choice with the prompt, and its log probabilities."},
            "prompt_logprobs": {
                "type": "integer",
                "minimum": 0,
                "maximum": MAX_LOGPROBS,
                "description": "Log probability of each prompt token, and of this many likeliest ones, in vLLM's form.",
            },
            "logprobs": {
                "anyOf": [
                    {"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS},
                    {"type": "boolean", "const": False},
                ],
                "description": told,
            },
        }

    def opening(self, choice: int, echo: str, prompt: PromptLogprobs) -> Json | None:
        """Return the echoed prompt and its log probabilities."""
        return {**self.delta(choice, (echo,), None), **prompt.fields()} if echo or prompt.is_told else None

    def delta(self, choice: int, parts: Sequence[Part], finish_reason: str | None, logprobs: Logprobs = ()) -> Json:
        """See ChoicesEndpoint."""
        told = self.write_logprobs(logprobs) if logprobs else None
        return self.whole_choice(choice, parts, finish_reason, told)

    def whole_choice(
        self, choice: int, parts: Sequence[Part], finish_reason: str | None, logprobs: Json | None
    ) -> Json:
        """See ChoicesEndpoint."""
        text = "".join(part for part in parts if isinstance(part, str))
        return {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def write_logprobs(self, tokens: Logprobs) -> Json:
        """See ChoicesEndpoint."""
        return completion_logprobs(tokens)


def _count(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_LOGPROBS:
        raise InvalidRequest(name, value, f"an integer from 0 to {MAX_LOGPROBS}")
    return value


def _prompt(field: str, value: Any) -> Prompt:
    if isinstance(value, str):
        return Text(check_text(field, value))
    if not isinstance(value, list) or not value or isinstance(value[0], str | list):
        raise InvalidRequest(field, value, _ALLOWED)
    return TokenIds(value)
