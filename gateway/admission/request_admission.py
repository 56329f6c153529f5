"""From a parsed body to requests of the wire contract: tokenize, check against the model, assign ids and a deadline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from orcastream.gateway.admission.answer_formats import AnswerFormats
from orcastream.gateway.admission.prompt_encoder import PromptEncoder
from orcastream.gateway.admission.request_ids import RequestIds
from orcastream.gateway.admission.trace_headers import trace_headers
from orcastream.gateway.errors import ApiError, invalid
from orcastream.gateway.openai.opening import MAX_PROMPT_LOGPROBS_IN_ANSWER, Opening
from orcastream.gateway.openai.options import Options
from orcastream.gateway.openai.prompt import Conversation
from orcastream.gateway.openai.request import ApiRequest
from orcastream.schemas.constraint import check_constraint
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.explain import first_complaint
from orcastream.schemas.keys import check_id
from orcastream.schemas.limits import MAX_ID_LENGTH, MAX_PAYLOAD_BYTES
from orcastream.schemas.model_limits import ModelLimits
from orcastream.schemas.request import GenerationRequest, Payload, RequestParameters
from orcastream.text.answer_grammar import answer_grammar
from orcastream.text.grammar import check_constraint as check_grammar
from orcastream.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds until a request expires: the default and the maximum."""

    default_s: float
    max_s: float


class RequestAdmission:
    """Checks everything about one model's requests that can be known before they are queued.

    Needs no Redis; may run in a thread.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        timeouts: Timeouts,
        ids: RequestIds,
        formats: AnswerFormats | None = None,
    ) -> None:
        """`formats`: how answers are parsed; None means as the tokenizer's chat template indicates."""
        self._ids = ids
        self._formats = formats or AnswerFormats(tokenizer)
        self._tokenizer = tokenizer
        self._timeouts = timeouts

    def admit(
        self,
        asked: ApiRequest,
        limits: ModelLimits,
        *,
        tenant: str,
        headers: Mapping[str, str],
        now_ms: int,
        longest: int | None = None,
    ) -> list[GenerationRequest]:
        """Return the requests in a body, one per prompt. Raises InvalidRequest or ApiError naming the defect.

        `limits` are the model's current limits, `now_ms` is the server's clock. `longest` is the maximum number of
        output tokens if the body sets none; None means the endpoint's default.
        """
        options = asked.options
        ids = self._request_ids(asked, headers.get("idempotency-key"), tenant)
        deadline_ms = self._deadline_ms(options, now_ms)
        parameters = asked.parameters.model_copy(update={"tenant": tenant})
        default = _default_length(asked, longest) if parameters.max_tokens is None else None
        traceparent, tracestate = trace_headers(headers)
        requests = [
            GenerationRequest(
                own_id,
                self._payload(asked, number, parameters, limits, default),
                deadline_ms,
                options.priority_class,
                traceparent=traceparent,
                tracestate=tracestate,
            )
            for number, own_id in enumerate(ids)
        ]
        for request in requests:
            _check_size(request)
        _check_told(asked.opening, [request.payload for request in requests])
        return requests

    def _request_ids(self, asked: ApiRequest, header: str | None, tenant: str) -> list[str]:
        """Return an id for each prompt, as used in the queue."""
        own, field = asked.options.request_id, "request_id"
        if header is not None:
            if own is not None and asked.endpoint.own_id(own) != asked.endpoint.own_id(header):
                raise InvalidRequest(
                    "Idempotency-Key", header, f"the same as request_id ({own}), or only one of the two"
                )
            own, field = header, "Idempotency-Key"
        count = len(asked.prompts)
        if own is None:
            return _one_for_each(asked.endpoint.new_id(), count)
        shown = _one_for_each(asked.endpoint.own_id(check_id(own, field)), count)
        ids = [self._ids.in_queue(one, tenant) for one in shown]
        beyond = max(map(len, ids)) - MAX_ID_LENGTH
        if beyond > 0:
            raise InvalidRequest(field, own, f"at most {len(own) - beyond} characters")
        return ids

    def _deadline_ms(self, options: Options, now_ms: int) -> int:
        most_s, asked_s, deadline_ms = self._timeouts.max_s, options.timeout, options.deadline_ms
        if deadline_ms is not None:
            if not now_ms < deadline_ms <= now_ms + most_s * 1000:
                allowed = f"milliseconds of Unix time, after now ({now_ms}), by at most {most_s:g} seconds"
                raise InvalidRequest("deadline_ms", deadline_ms, allowed)
            return deadline_ms
        if asked_s is not None and asked_s > most_s:
            raise InvalidRequest("timeout", asked_s, f"more than 0, at most {most_s:g} seconds")
        return now_ms + int((self._timeouts.default_s if asked_s is None else asked_s) * 1000)

    def _payload(
        self,
        asked: ApiRequest,
        number: int,
        parameters: RequestParameters,
        limits: ModelLimits,
        default: int | None,
    ) -> Payload:
        """Return the payload of one prompt; `default`: maximum output tokens, at most the context's remaining room."""
        prompt = asked.prompts[number]
        try:
            ids = PromptEncoder(self._tokenizer, limits).encode(prompt, asked.options.add_special_tokens)
        except InvalidRequest as error:
            raise _beyond_the_model(asked, number, error) from None
        if default is not None:
            room = max(1, limits.max_total_tokens - len(ids))
            parameters = parameters.model_copy(update={"max_tokens": min(default, room)})
        try:
            if isinstance(prompt, Conversation):
                parameters = self._as_answered(asked, prompt, ids, parameters)
            payload = Payload.of(ids, parameters)
        except InvalidRequest as error:
            raise asked.told(error, number) from None
        try:
            limits.check(payload)
        except InvalidRequest as error:
            raise _beyond_the_model(asked, number, error) from None
        return payload

    def _as_answered(
        self, asked: ApiRequest, chat: Conversation, ids: Sequence[int], parameters: RequestParameters
    ) -> RequestParameters:
        """Add the answer's format to the parameters, and a grammar for all of it if parts of it are mandatory."""
        answer_format = self._formats.of(chat, ids)
        if answer_format.is_plain:
            return parameters
        own, use = parameters.constraint, chat.tool_use
        calls = use.calls if use is not None and (use.followed or own is not None) else None
        try:
            constraint = answer_grammar(answer_format, calls, own)
            if constraint is not None and constraint is not own:
                check_grammar(constraint)
        except (ValidationError, InvalidRequest) as error:
            told = error if isinstance(error, InvalidRequest) else first_complaint(error)
            name = asked.names.get("response_format", "response_format") if calls is None else "tools"
            raise ApiError(422, str(told.renamed(name)), param=name, code="invalid_constraint") from None
        update = {"answer_format": str(answer_format), "constraint": constraint}
        parameters = parameters.model_copy(update={name: each for name, each in update.items() if each})
        check_constraint(parameters)
        return parameters


def _default_length(asked: ApiRequest, longest: int | None) -> int | None:
    """Return the maximum output tokens if the body sets none; None if only the context limits them."""
    own = asked.endpoint.default_max_tokens
    if own is None:
        return longest
    length = max(own, asked.parameters.min_tokens)
    return length if longest is None else min(length, longest)


def _beyond_the_model(asked: ApiRequest, number: int, error: InvalidRequest) -> Exception:
    """Return the error for a request that the model cannot hold."""
    code = "context_length_exceeded" if error.field in ("prompt", "max_tokens", "min_tokens") else None
    return invalid(asked.told(error, number), code)


def _one_for_each(request_id: str, count: int) -> list[str]:
    """Return an id for each prompt; the first has the request's own."""
    return [request_id, *(f"{request_id}.p{number}" for number in range(1, count))]


def _check_told(opening: Opening, payloads: Sequence[Payload]) -> None:
    """Raise InvalidRequest if the answer would have too many log probabilities of prompts: each choice repeats them."""
    told = opening.logprobs_per_token * sum(len(payload.prompt) * payload.n for payload in payloads)
    if told <= MAX_PROMPT_LOGPROBS_IN_ANSWER:
        return
    field = "logprobs" if opening.prompt_logprobs is None else "prompt_logprobs"
    allowed = (
        f"a value that gives at most {MAX_PROMPT_LOGPROBS_IN_ANSWER} log probabilities of prompts in the answer, not "
        f"{told}: the tokens of all prompts, times n, times one more than this, in logprobs and in prompt_logprobs"
    )
    raise InvalidRequest(field, getattr(opening, field), allowed)


def _check_size(request: GenerationRequest) -> None:
    """Raise InvalidRequest for a payload over the contract's limit; measures only those with many tokens."""
    prompt = request.payload.prompt
    if len(prompt) * 4 > MAX_PAYLOAD_BYTES // 2 and len(request.fields()["payload"]) > MAX_PAYLOAD_BYTES:
        raise InvalidRequest("prompt", f"{len(prompt)} tokens", f"a payload of at most {MAX_PAYLOAD_BYTES} bytes")
