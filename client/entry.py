"""A request in the form of a queue entry."""

from collections.abc import Mapping
from typing import Any

from orcastream.client.request import Asked, Prompt, is_chat
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.request import Payload, parse_payload
from orcastream.schemas.utf8_text import check_text, check_value
from orcastream.text.chat_template import NoChatTemplate
from orcastream.text.tokenizer import Tokenizer


def payload_of(asked: Asked, tenant: str, tokenizer: Tokenizer | None) -> Payload:
    """Return the payload of its entry. Raises InvalidRequest naming the defect."""
    if "on_disconnect" in asked.parameters:
        allowed = "only over HTTP: a request that is posted to Redis continues without its client"
        raise InvalidRequest("on_disconnect", asked.parameters["on_disconnect"], allowed)
    parameters = dict(asked.parameters)
    if isinstance(parameters.get("logit_bias"), Mapping):
        parameters["logit_bias"] = [[token, bias] for token, bias in parameters["logit_bias"].items()]
    return parse_payload({**parameters, "tenant": tenant, "prompt": prompt_ids(asked.prompt, tokenizer)})


def prompt_ids(prompt: Prompt, tokenizer: Tokenizer | None) -> list[Any]:
    """Return a prompt's token ids. Raises InvalidRequest if they cannot be determined."""
    if not isinstance(prompt, str) and not is_chat(prompt):
        return list(prompt)
    if tokenizer is None:
        raise InvalidRequest("prompt", prompt, "token ids; text and messages only with a tokenizer of the client")
    if isinstance(prompt, str):
        return [*tokenizer.encode(check_text("prompt", prompt))]
    check_value("messages", list(prompt))
    try:
        return [*tokenizer.chat(prompt)]  # type: ignore[arg-type]  # is_chat has looked
    except NoChatTemplate as error:
        raise InvalidRequest("prompt", prompt, f"text or token ids: {error}") from None
