"""One generation request: the flat fields of its queue entry and the payload in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError, model_validator

from orcastream.schemas.candidates import check_candidates
from orcastream.schemas.codec import Form, decode, encode, form_of
from orcastream.schemas.constraint import Constraint, check_constraint
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.schemas.explain import first_complaint
from orcastream.schemas.keys import CLASSES, DEFAULT_TENANT, check_id
from orcastream.schemas.limits import (
    ANSWER_FORMAT_PATTERN,
    MAX_ANSWER_FORMAT_LENGTH,
    MAX_CACHE_SALT_LENGTH,
    MAX_CHOICES,
    MAX_DEADLINE_AHEAD_MS,
    MAX_LENGTH_PENALTY,
    MAX_LOGPROBS,
    MAX_PAYLOAD_BYTES,
    MAX_PAYLOAD_PARTS,
    MAX_SLO_MS,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_TRACE_HEADER_LENGTH,
    NAME_PATTERN,
    PROTOCOL_VERSION,
    UNSTATED_OUTPUT_TOKENS,
)
from orcastream.schemas.prompt_ids import PromptIds, pack_ids
from orcastream.schemas.sampling import SamplingParams

ENTRY_FIELDS = frozenset({"id", "v", "class", "deadline", "traceparent", "tracestate", "payload"})

M = TypeVar("M", bound=BaseModel)


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class RequestParameters(SamplingParams):
    """Everything a producer sets besides the prompt: sampling, choices, and how the request behaves."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    n: int = Field(1, ge=1, le=MAX_CHOICES, description="Choices of the answer.")
    best_of: int | None = Field(
        None, ge=1, le=MAX_CHOICES, description="Candidates, the n best of which are the choices; none: n."
    )
    use_beam_search: bool = Field(
        False, description="Candidates are the hypotheses of a beam search instead of samples."
    )
    length_penalty: float = Field(
        1.0,
        ge=-MAX_LENGTH_PENALTY,
        le=MAX_LENGTH_PENALTY,
        description="A hypothesis scores its log probability over its number of tokens to this power.",
    )
    early_stopping: bool = Field(
        False, description="A beam search ends once as many hypotheses have ended as there are candidates."
    )
    stop: Annotated[tuple[StopString, ...], FailFast()] = Field(
        (), max_length=MAX_STOP_STRINGS, strict=False, description="Texts that end a choice; never part of it."
    )
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Log probability of each token of the prompt and of this many likeliest ones in its place.",
    )
    constraint: Constraint | None = Field(None, description="A constraint that the text of every choice must follow.")
    answer_format: str = Field(
        "",
        max_length=MAX_ANSWER_FORMAT_LENGTH,
        pattern=f"^(?:{ANSWER_FORMAT_PATTERN.pattern})?$",
        description="What the text holds besides content, for its readers: names joined by +.",
    )
    tenant: str = Field(
        DEFAULT_TENANT,
        pattern=f"^(?:{NAME_PATTERN.pattern})$",
        description="Who may read the reply log through a gateway.",
    )
    cache_salt: str = Field(
        "",
        max_length=MAX_CACHE_SALT_LENGTH,
        description="Cached prefixes are shared only among requests of equal tenant and salt.",
    )
    adapter: str = Field(
        "",
        pattern=f"^(?:{NAME_PATTERN.pattern})?$",
        description="The LoRA adapter that changes the model for this request; empty: none.",
    )
    ttft_slo_ms: float | None = Field(
        None, gt=0, le=MAX_SLO_MS, description="Target for the time to the first token. [ms]"
    )
    tbt_slo_ms: float | None = Field(
        None, gt=0, le=MAX_SLO_MS, description="Target for the time between two tokens. [ms]"
    )
    on_disconnect: Literal["cancel", "continue"] = Field(
        "continue", description="What the loss of its HTTP client means to a request that a gateway accepted."
    )

    @model_validator(mode="after")
    def _parameters_agree(self) -> Self:
        check_candidates(self)
        check_constraint(self)
        return self

    @property
    def num_candidates(self) -> int:
        """Number of sequences computed for the request: samples, or hypotheses of its beam search."""
        return self.best_of or self.n

    @property
    def declared_length(self) -> int:
        """The longest output of one candidate, as far as the request states it. [tokens]"""
        return UNSTATED_OUTPUT_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def is_ranked(self) -> bool:
        """Whether the choices are known only once every candidate has ended; nothing is published before that."""
        return self.use_beam_search or self.num_candidates > self.n

    @property
    def sampling(self) -> SamplingParams:
        """The sampling parameters alone, as the engine takes them; a beam search draws no samples."""
        values = {name: getattr(self, name) for name in SamplingParams.model_fields}
        if self.use_beam_search:
            values["temperature"] = 0.0
        return SamplingParams.model_construct(**values)


class _Prompt(BaseModel):
    """A prompt alone."""

    model_config = ConfigDict(strict=True)

    prompt: PromptIds


class Payload(RequestParameters):
    """What a queue entry asks for: the prompt's token ids and the parameters."""

    prompt: PromptIds

    @classmethod
    def of(cls, prompt: Sequence[int], parameters: RequestParameters) -> "Payload":
        """Return the payload of checked parameters; raise InvalidRequest naming the place where `prompt` is invalid."""
        checked = _parse(_Prompt, {"prompt": prompt}).prompt
        names = {*parameters.model_fields_set, "prompt"}
        return cls.model_construct(_fields_set=names, **{**parameters.__dict__, "prompt": checked})

    @property
    def num_prompt_logprobs(self) -> int:
        """Log probabilities of the prompt's tokens in the whole reply."""
        return 0 if self.prompt_logprobs is None else len(self.prompt) * (1 + self.prompt_logprobs)

    @property
    def declared_tokens(self) -> int:
        """What the request counts for before its cost is known: its prompt and its candidates. [tokens]"""
        return len(self.prompt) + self.num_candidates * self.declared_length


def parse_payload(body: Mapping[str, Any]) -> Payload:
    """Return the checked payload; raise InvalidRequest naming the first field that is wrong."""
    return _parse(Payload, body)


def parse_parameters(body: Mapping[str, Any]) -> RequestParameters:
    """Return the checked parameters of a request whose prompt is elsewhere; raise InvalidRequest as `parse_payload`."""
    return _parse(RequestParameters, body)


def _parse(kind: type[M], body: Mapping[str, Any]) -> M:
    if len(body) > len(kind.model_fields):  # otherwise each of half a million names would get its own error
        unknown = next(name for name in body if name not in kind.model_fields)
        raise InvalidRequest(unknown, body[unknown], "no such parameter exists")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise first_complaint(error) from None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A whole request as it travels; `deadline_ms` is absolute, milliseconds of Unix time."""

    id: str
    payload: Payload
    deadline_ms: int
    priority_class: str = "normal"
    form: Form = Form.MSGPACK
    traceparent: str | None = None
    tracestate: str | None = None
    record: str | None = field(default=None, compare=False)
    """The gateway's data stored next to the entry as long as the id is remembered; not part of the entry."""

    def fields(self) -> dict[str, str | bytes]:
        """Return the flat fields of the queue entry, for XADD."""
        body = self.payload.model_dump(exclude_defaults=True, exclude={"prompt"})
        body["prompt"] = list(self.payload.prompt) if self.form is Form.JSON else pack_ids(self.payload.prompt)
        flat: dict[str, str | bytes] = {
            "id": self.id,
            "v": str(PROTOCOL_VERSION),
            "class": self.priority_class,
            "deadline": str(self.deadline_ms),
            "payload": encode(body, self.form),
        }
        if self.traceparent:
            flat["traceparent"] = self.traceparent
        if self.tracestate:
            flat["tracestate"] = self.tracestate
        return flat

    @classmethod
    def from_fields(
        cls,
        fields: Mapping[bytes, bytes],
        *,
        stream_class: str,
        now_ms: int,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> Self:
        """Read a queue entry found in the stream of `stream_class`; raise InvalidRequest if it breaks the contract.

        `id` and `v` are checked first, so that the error's reporter knows where and in which version to report it.
        A deadline that has passed is not an error of form: the caller ends such a request as expired.
        """
        request_id = check_id(_text(fields, "id"))
        version = _text(fields, "v")
        if version != str(PROTOCOL_VERSION):
            raise InvalidRequest("v", version, str(PROTOCOL_VERSION), ErrorCode.UNSUPPORTED_VERSION)
        for name in fields:
            if name.decode(errors="replace") not in ENTRY_FIELDS:
                raise InvalidRequest(
                    name.decode(errors="replace"), fields[name], f"only {', '.join(sorted(ENTRY_FIELDS))}"
                )
        priority_class = _text(fields, "class", stream_class)
        if priority_class != stream_class:
            raise InvalidRequest(
                "class", priority_class, f"{stream_class}, the class of its stream (of {', '.join(CLASSES)})"
            )
        deadline_ms = _deadline(_text(fields, "deadline"), now_ms)
        raw = fields.get(b"payload")
        if raw is None:
            raise InvalidRequest("payload", None, "one msgpack map or JSON object")
        if len(raw) > max_payload_bytes:
            raise InvalidRequest("payload", f"{len(raw)} bytes", f"at most {max_payload_bytes} bytes")
        return cls(
            id=request_id,
            payload=parse_payload(decode(raw, unique_keys=True, max_parts=MAX_PAYLOAD_PARTS)),
            deadline_ms=deadline_ms,
            priority_class=priority_class,
            form=form_of(raw),
            traceparent=trace_header(fields, b"traceparent"),
            tracestate=trace_header(fields, b"tracestate"),
        )


def trace_header(fields: Mapping[bytes, bytes], name: bytes) -> str | None:
    """Return a header of an entry's trace context; None if it has none, or one that is no text or too long.

    As W3C's recommendation has it, such a header is dropped, and the request served.
    """
    try:
        text = fields.get(name, b"").decode()
    except UnicodeDecodeError:
        return None
    return text if 0 < len(text) <= MAX_TRACE_HEADER_LENGTH else None


def _text(fields: Mapping[bytes, bytes], name: str, default: str | None = None) -> str:
    raw = fields.get(name.encode())
    if raw is None:
        if default is None:
            raise InvalidRequest(name, None, "a value: the field is required")
        return default
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(name, raw, "UTF-8 text") from None


def _deadline(text: str, now_ms: int) -> int:
    latest = now_ms + MAX_DEADLINE_AHEAD_MS
    if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) > latest:
        raise InvalidRequest("deadline", text, f"milliseconds of Unix time, at most {MAX_DEADLINE_AHEAD_MS} ms ahead")
    return int(text)
