"""/tokenize and /detokenize: the token ids of a prompt, and the text of token ids."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from orcastream.gateway.admission.prompt_encoder import PromptEncoder
from orcastream.gateway.admission.query import check_query
from orcastream.gateway.openai.json_body import read_json_object
from orcastream.gateway.openai.messages import read_messages
from orcastream.gateway.openai.prompt import Conversation, Prompt, Text
from orcastream.gateway.openai.tokenizing import DetokenizeRequest, TokenizeRequest
from orcastream.gateway.served_model import ServedModel
from orcastream.gateway.service import Gateway
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.explain import first_complaint
from orcastream.schemas.utf8_text import check_text
from orcastream.text.token_text import token_text

M = TypeVar("M", bound=BaseModel)


async def tokenize(gateway: Gateway, request: Request) -> Response:
    """POST /tokenize: the ids and their number, as in a request with the same prompt."""
    async with _body(gateway, request) as (body, size):
        asked = _checked(TokenizeRequest, body)
        model = await _model(gateway, asked.model)
        return JSONResponse(await gateway.offload.run(size, partial(_tokenize, model, asked)))


async def detokenize(gateway: Gateway, request: Request) -> Response:
    """POST /detokenize: the text of token ids."""
    async with _body(gateway, request) as (body, size):
        asked = _checked(DetokenizeRequest, body)
        model = await _model(gateway, asked.model)
        return JSONResponse(await gateway.offload.run(size, partial(_detokenize, model, asked.tokens)))


@asynccontextmanager
async def _body(gateway: Gateway, request: Request) -> AsyncIterator[tuple[dict[str, Any], int]]:
    """Yield the parsed body of an authorized request, and its size in bytes."""
    gateway.tenants.of(request.headers)
    check_query(request)
    async with gateway.bodies.body_of(request) as raw:
        read = partial(read_json_object, raw, gateway.models.max_total_tokens)
        yield await gateway.offload.run(len(raw), read), len(raw)


def _checked(kind: type[M], body: dict[str, Any]) -> M:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise first_complaint(error, "body") from None


async def _model(gateway: Gateway, name: str | None) -> ServedModel:
    return gateway.models.default if name is None else (await gateway.models.named(name)).model


def _tokenize(model: ServedModel, asked: TokenizeRequest) -> dict[str, Any]:
    limits, prompt = model.workers.limits, _prompt(asked)
    try:
        ids = list(PromptEncoder(model.tokenizer, limits).encode(prompt, asked.add_special_tokens))
    except InvalidRequest as error:
        name = "messages" if asked.prompt is None else "prompt"
        raise InvalidRequest(error.field.replace("prompt", name, 1), error.value, error.allowed) from None
    told: dict[str, Any] = {"count": len(ids), "max_model_len": limits.max_total_tokens, "tokens": ids}
    if asked.return_token_strs:
        told["token_strs"] = [token_text(model.tokenizer, token).text for token in ids]
    return told


def _prompt(asked: TokenizeRequest) -> Prompt:
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidRequest("prompt", asked.prompt, "text, or messages instead")
    if asked.prompt is None:
        return Conversation(read_messages(asked.messages), asked.chat_template_kwargs or {})
    return Text(check_text("prompt", asked.prompt))


def _detokenize(model: ServedModel, tokens: list[int]) -> dict[str, Any]:
    limits = model.workers.limits
    if len(tokens) > limits.max_total_tokens:
        raise InvalidRequest("tokens", f"{len(tokens)} tokens", f"at most {limits.max_total_tokens} tokens")
    for number, token in enumerate(tokens):
        if token >= limits.vocab_size:
            allowed = f"token ids below the vocabulary size {limits.vocab_size}"
            raise InvalidRequest(f"tokens.{number}", token, allowed)
    return {"prompt": model.tokenizer.decode(tokens)}
