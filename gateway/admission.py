"""From an HTTP body to a request of the wire contract: parse, tokenize, check against the model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from gateway.errors import ApiError, invalid, model_not_found
from gateway.kind import Kind
from gateway.openai_request import DEFAULT_COMPLETION_TOKENS, ApiRequest, parse_body
from schemas.errors import InvalidRequest
from schemas.keys import check_id
from schemas.limits import MAX_ID_LENGTH, MAX_PAYLOAD_BYTES, MAX_TRACE_HEADER_LENGTH
from schemas.model_limits import ModelLimits
from schemas.request import GenerationRequest, Payload, parse_payload
from text.tokenizer import NoChatTemplate, Tokenizer, TooManyTokens

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may be enqueued, and how its client wants the answer."""

    request: GenerationRequest
    stream: bool
    include_usage: bool
    user: str | None
    durable: bool


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds until a request expires: by default, and at most."""

    default_s: float
    max_s: float


class Admission:
    """Checks everything that can be known before a request waits. Needs no Redis; may run in a thread."""

    def __init__(self, tokenizer: Tokenizer, limits: ModelLimits, served_model: str, timeouts: Timeouts) -> None:
        self._tokenizer = tokenizer
        self._served_model = served_model
        self._timeouts = timeouts
        self.limits = limits

    def admit(self, kind: Kind, raw: bytes, *, tenant: str, headers: Mapping[str, str], now_ms: int) -> Admitted:
        """The request in a body; InvalidRequest or ApiError naming what is wrong. `now_ms` is the server's clock."""
        asked = parse_body(kind, raw, self.limits.max_total_tokens)
        options = asked.options
        if options.model != self._served_model:
            raise model_not_found(options.model, self._served_model)
        request_id = self._id(asked, headers.get("idempotency-key"))
        deadline_ms = now_ms + int(self._timeout_s(options.timeout) * 1000)
        payload = self._payload(asked, tenant)
        if options.stream:
            _check_streamable(payload)
        traceparent, tracestate = trace_headers(headers)
        request = GenerationRequest(
            request_id,
            payload,
            deadline_ms,
            options.priority,
            traceparent=traceparent,
            tracestate=tracestate,
        )
        if len(payload.prompt) * 4 > MAX_PAYLOAD_BYTES // 2 and len(request.fields()["payload"]) > MAX_PAYLOAD_BYTES:
            raise InvalidRequest(
                "prompt", f"{len(payload.prompt)} tokens", f"a payload of at most {MAX_PAYLOAD_BYTES} bytes"
            )
        return Admitted(request, options.stream, asked.include_usage, options.user, options.durable)

    def _id(self, asked: ApiRequest, header: str | None) -> str:
        own, field = asked.options.request_id, "request_id"
        if own is None and header is not None:
            own, field = header, "Idempotency-Key"
        if own is None:
            return asked.kind.new_id()
        request_id = asked.kind.own_id(check_id(own, field))
        if len(request_id) > MAX_ID_LENGTH:
            raise InvalidRequest(field, own, f"at most {MAX_ID_LENGTH - len(asked.kind) - 1} characters")
        return request_id

    def _timeout_s(self, asked_s: float | None) -> float:
        if asked_s is None:
            return self._timeouts.default_s
        if asked_s > self._timeouts.max_s:
            raise InvalidRequest("timeout", asked_s, f"more than 0, at most {self._timeouts.max_s:g} seconds")
        return asked_s

    def _payload(self, asked: ApiRequest, tenant: str) -> Payload:
        parameters = {"on_disconnect": "cancel", **asked.parameters, "tenant": tenant}
        try:
            # parameters before the prompt, so that a wrong one costs no tokenizing
            parse_payload({**parameters, "prompt": [0]})
            prompt = self._encode(asked)
            if asked.kind is Kind.COMPLETION and "max_tokens" not in parameters:
                room = self.limits.max_total_tokens - len(prompt)
                least = parameters.get("min_tokens", 0)
                parameters["max_tokens"] = max(1, min(max(DEFAULT_COMPLETION_TOKENS, least), room))
            payload = parse_payload({**parameters, "prompt": prompt})
        except InvalidRequest as error:
            raise _in_the_clients_words(error, asked) from None
        try:
            self.limits.check(payload)
        except InvalidRequest as error:
            code = "context_length_exceeded" if error.field in ("prompt", "max_tokens", "min_tokens") else None
            raise invalid(_in_the_clients_words(error, asked), code) from None
        return payload

    def _encode(self, asked: ApiRequest) -> list[int]:
        """The prompt's ids; ApiError where the context cannot take it, as early as that is known."""
        try:
            if isinstance(asked.prompt, str):
                return self._tokenize(asked.prompt)
            if asked.kind is Kind.CHAT:
                return self._tokenize(self._conversation(asked.prompt), add_special_tokens=False)
            self.limits.fit(len(asked.prompt), max_tokens=None, min_tokens=0)
        except InvalidRequest as error:
            code = "context_length_exceeded" if error.field == "prompt" else None
            raise invalid(_in_the_clients_words(error, asked), code) from None
        return cast(list[int], asked.prompt)

    def _tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self._check_characters(len(text))
        most = self.limits.max_total_tokens - 1
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens, most=most)
        except TooManyTokens as error:
            self.limits.fit(error.count, max_tokens=None, min_tokens=0)
            raise

    def _conversation(self, messages: list[Any]) -> str:
        """A chat as its template writes it; what the messages say is measured first."""
        self._check_characters(sum(len(message["content"]) for message in messages))
        try:
            return self._tokenizer.chat_text(messages)
        except NoChatTemplate as error:
            raise ApiError(400, f"messages: {error}", param="messages", code="no_chat_template") from None

    def _check_characters(self, count: int) -> None:
        """InvalidRequest for a text that no context can take, before it is tokenized: that takes its time."""
        most_tokens, longest = self.limits.max_total_tokens - 1, self._tokenizer.longest_token
        if count > most_tokens * longest:
            allowed = f"at most {most_tokens * longest} characters ({most_tokens} tokens of at most {longest})"
            raise InvalidRequest("prompt", f"{count} characters", allowed)


def _check_streamable(payload: Payload) -> None:
    """A stream of ranked choices would be silent until its end: InvalidRequest naming what it comes of."""
    if payload.use_beam_search:
        raise InvalidRequest("use_beam_search", True, "False with stream=true: hypotheses are known only at the end")
    if payload.is_ranked:
        allowed = f"n ({payload.n}) with stream=true: the best candidates are known only at the end"
        raise InvalidRequest("best_of", payload.best_of, allowed)


def _in_the_clients_words(error: InvalidRequest, asked: ApiRequest) -> InvalidRequest:
    """The error under the names that the client used: a chat has messages, and another name for max_tokens."""
    names = {"max_tokens": asked.max_tokens_name, "prompt": "messages" if asked.kind is Kind.CHAT else "prompt"}
    name = names.get(error.field, error.field)
    return error if name == error.field else InvalidRequest(name, error.value, error.allowed, error.code)


def trace_headers(headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """W3C trace context as it may travel; a header that is none is left out, as that standard says."""
    parent = headers.get("traceparent", "").strip()
    if not _TRACEPARENT.fullmatch(parent):
        return None, None
    state = headers.get("tracestate", "").strip()
    return parent, state if 0 < len(state) <= MAX_TRACE_HEADER_LENGTH and state.isascii() else None
