"""The parameters of a client's request."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, NotRequired, TypedDict

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import CLASSES, PriorityClass


class Message(TypedDict):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str


class Constraint(TypedDict, total=False):
    """A constraint on every choice: exactly one of these."""

    json_schema: str | Mapping[str, Any]
    """A JSON Schema, as text or as an object."""
    regex: str
    choice: Sequence[str]
    grammar: str


Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or the messages of a chat."""


class Parameters(TypedDict):
    """The parameters of a request, in addition to its prompt, as in the README and schemas/asyncapi.yaml.

    `adapter` is the LoRA adapter of the client's model that answers.
    """

    max_tokens: NotRequired[int]
    min_tokens: NotRequired[int]
    temperature: NotRequired[float]
    top_k: NotRequired[int]
    top_p: NotRequired[float]
    min_p: NotRequired[float]
    presence_penalty: NotRequired[float]
    frequency_penalty: NotRequired[float]
    repetition_penalty: NotRequired[float]
    logit_bias: NotRequired[Mapping[int, float]]
    logprobs: NotRequired[int]
    prompt_logprobs: NotRequired[int]
    constraint: NotRequired[Constraint]
    adapter: NotRequired[str]
    seed: NotRequired[int]
    stop: NotRequired[str | Sequence[str]]
    stop_token_ids: NotRequired[Sequence[int]]
    ignore_eos: NotRequired[bool]
    n: NotRequired[int]
    best_of: NotRequired[int]
    use_beam_search: NotRequired[bool]
    length_penalty: NotRequired[float]
    early_stopping: NotRequired[bool]
    cache_salt: NotRequired[str]
    ttft_slo_ms: NotRequired[float]
    tbt_slo_ms: NotRequired[float]
    on_disconnect: NotRequired[Literal["cancel", "continue"]]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the caller gave it; `id` is its id in the service."""

    id: str
    prompt: Prompt
    parameters: Mapping[str, Any]
    priority: PriorityClass
    timeout_s: float
    durable: bool

    @property
    def is_chat(self) -> bool:
        """Whether the prompt is a conversation."""
        return is_chat(self.prompt)


def is_chat(prompt: Prompt) -> bool:
    """Whether a prompt is the messages of a chat."""
    return not isinstance(prompt, str) and any(isinstance(part, Mapping) for part in prompt)


def check_asked(prompt: object, priority: object, timeout_s: object) -> None:
    """Raise InvalidRequest for a value of the wrong kind, before another component gives it a different meaning."""
    if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Sequence):
        raise InvalidRequest("prompt", prompt, "text, a list of token ids, or of messages")
    if priority not in CLASSES:
        raise InvalidRequest("priority", priority, ", ".join(CLASSES))
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s < inf:  # type: ignore[operator]  # a number
        raise InvalidRequest("timeout_s", timeout_s, "a finite number above 0")


def checked_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that are not None, in the contract's form. Raises InvalidRequest for an unknown name.

    A single stop string becomes a list, a JSON Schema text.
    """
    for name, value in given.items():
        if name not in Parameters.__annotations__:
            raise InvalidRequest(name, value, f"one of {', '.join(Parameters.__annotations__)}")
    parameters = {name: value for name, value in given.items() if value is not None}
    if isinstance(parameters.get("stop"), str):
        parameters["stop"] = [parameters["stop"]]
    if "constraint" in parameters:
        parameters["constraint"] = _checked_constraint(parameters["constraint"])
    return parameters


def _checked_constraint(given: object) -> dict[str, Any]:
    kinds = Constraint.__annotations__
    if not isinstance(given, Mapping) or len(given) != 1 or not given.keys() <= kinds.keys():
        raise InvalidRequest("constraint", given, f"exactly one of {', '.join(kinds)}")
    ((kind, value),) = given.items()
    if kind == "json_schema" and isinstance(value, Mapping):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if kind == "choice" and isinstance(value, Iterable) and not isinstance(value, str):
        value = [*value]
    return {kind: value}
