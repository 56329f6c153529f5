"""The events of a reply log: one started event per epoch, prompt log probabilities, output, one terminal event."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Self, TypeVar

from orcastream.schemas.codec import Form, decode, encode, pack_value
from orcastream.schemas.errors import ErrorCode, InvalidRequest, shown
from orcastream.schemas.limits import MAX_SEED, MAX_TOKEN_ID
from orcastream.schemas.stopping import FinishReason
from orcastream.schemas.wire_values import integer, number, seed, text

Named = TypeVar("Named", bound=StrEnum)


@dataclass(slots=True, order=True)
class EventId:
    """Entry id of a reply log: the epoch of the attempt, and the event's number in it (0 is the started event).

    Treat as immutable, like Run.
    """

    epoch: int
    index: int

    @classmethod
    def parse(cls, text: bytes | str) -> Self:
        """Parse `epoch-index`."""
        epoch, _, index = text.partition(b"-") if isinstance(text, bytes) else text.partition("-")
        return cls(int(epoch), int(index or 0))

    def __str__(self) -> str:
        return f"{self.epoch}-{self.index}"


@dataclass(slots=True)
class Run:
    """Consecutive output tokens of one choice; `position` is that of the first, 0 being the first output token.

    Treat as immutable. It is not frozen because one is created per token, and a frozen dataclass takes four times as
    long to create.

    `logprobs`, when asked for, has one item per token: `[logprob of the token, [[token id, logprob], ...]]`.
    """

    choice: int
    position: int
    tokens: tuple[int, ...]
    logprobs: tuple[Any, ...] | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the run as a plain dict."""
        wire: dict[str, Any] = {"choice": self.choice, "position": self.position, "tokens": list(self.tokens)}
        if self.logprobs is not None:
            wire["logprobs"] = list(self.logprobs)
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Build from a plain dict; raise TypeError if a value has the wrong type or range. Called per event read."""
        choice, position, tokens, logprobs = wire["choice"], wire["position"], wire["tokens"], wire.get("logprobs")
        if type(choice) is not int or type(position) is not int or not (0 <= choice <= MAX_SEED >= position >= 0):
            raise TypeError(f"choice {shown(choice)}, position {shown(position)}")
        if type(tokens) is not list:
            raise TypeError("tokens is not a list")
        for token in tokens:
            if type(token) is not int or not 0 <= token <= MAX_TOKEN_ID:
                raise TypeError(f"{shown(token)} is not a token id")
        if logprobs is None:
            return cls(choice, position, tuple(tokens))
        if type(logprobs) is not list or len(logprobs) != len(tokens):
            raise TypeError("logprobs is not a list with one item per token")
        return cls(choice, position, tuple(tokens), tuple(logprobs))


@dataclass(frozen=True, slots=True)
class Started:
    """The event `E-0`: by writing it, a worker fences every older epoch and identifies itself.

    `entry` is `class entry-id`, the queue entry being served. `worker` is set even by a writer that only ends the
    request. `answer_format` is the request's own, so that readers of the log alone can tell thinking and calls from
    content.
    """

    worker: str
    model: str
    tenant: str
    priority_class: str
    entry: str
    seed: int
    prompt_tokens: int
    n: int = 1
    traceparent: str | None = None
    answer_format: str = ""
    prompt_logprobs: int | None = None
    """The request's own: if it is a number, prompt events come before the first token."""

    type = "started"

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a plain dict."""
        wire: dict[str, Any] = {
            "worker": self.worker,
            "model": self.model,
            "tenant": self.tenant,
            "class": self.priority_class,
            "entry": self.entry,
            "seed": self.seed,
            "prompt_tokens": self.prompt_tokens,
            "n": self.n,
        }
        if self.traceparent:
            wire["traceparent"] = self.traceparent
        if self.answer_format:
            wire["answer_format"] = self.answer_format
        if self.prompt_logprobs is not None:
            wire["prompt_logprobs"] = self.prompt_logprobs
        return wire


@dataclass(frozen=True, slots=True)
class PromptRun:
    """Consecutive tokens of the prompt with the model's log probabilities; `position` is that of the first, from 0.

    `logprobs` has one item per token: `[logprob of the token, [[token id, logprob], ...]]`, or None for the first
    token of the prompt, which follows nothing. `ranks` likewise: one more than the number of tokens with a higher log
    probability. Events of older versions have no ranks.
    """

    position: int
    tokens: tuple[int, ...]
    logprobs: tuple[Any, ...]
    ranks: tuple[int | None, ...] | None = None

    type = "prompt"
    runs: ClassVar[tuple[Run, ...]] = ()
    """Carries no output."""

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.position + len(self.tokens)

    def beyond(self, position: int) -> "PromptRun | None":
        """Return the part at `position` and after; None if nothing is left."""
        skip = max(0, position - self.position)
        if skip >= len(self.tokens):
            return None
        if not skip:
            return self
        ranks = None if self.ranks is None else self.ranks[skip:]
        return PromptRun(self.position + skip, self.tokens[skip:], self.logprobs[skip:], ranks)

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a plain dict."""
        wire = {"position": self.position, "tokens": list(self.tokens), "logprobs": list(self.logprobs)}
        return wire if self.ranks is None else {**wire, "ranks": list(self.ranks)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Build from a plain dict; raise TypeError if a value has the wrong type or range."""
        position, tokens, logprobs = wire["position"], wire["tokens"], wire["logprobs"]
        run = Run.from_wire({"choice": 0, "position": position, "tokens": tokens, "logprobs": logprobs})
        if not run.tokens or run.logprobs is None:
            raise TypeError("no tokens with log probabilities")
        for offset, item in enumerate(run.logprobs):
            if not (item is None if position + offset == 0 else type(item) is list and len(item) == 2):
                raise TypeError(f"{shown(item)} is not a log probability of the prompt's token {position + offset}")
        return cls(run.position, run.tokens, run.logprobs, _ranks(run, wire.get("ranks")))


def _ranks(run: Run, ranks: Any) -> tuple[int | None, ...] | None:
    """Return the checked ranks of a prompt's tokens."""
    if ranks is None:
        return None
    if type(ranks) is not list or len(ranks) != len(run.tokens):
        raise TypeError("ranks is not a list with one item per token")
    for position, rank in enumerate(ranks, run.position):
        if position == 0 and rank is None:
            continue
        if position == 0 or type(rank) is not int or not 1 <= rank <= MAX_TOKEN_ID + 1:
            raise TypeError(f"{shown(rank)} is not a rank of the prompt's token {position}")
    return tuple(ranks)


@dataclass(slots=True)
class Output:
    """Tokens from one iteration, for one or more choices. Treat as immutable, like Run."""

    runs: tuple[Run, ...]

    type = "tokens"

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a plain dict."""
        return {"output": [run.to_wire() for run in self.runs]}


@dataclass(frozen=True, slots=True)
class Ending:
    """How one choice ended: its number of tokens and, if a stop string cut its text, the text's length."""

    finish_reason: FinishReason | None
    tokens: int
    text_length: int | None = None
    stop: str | int | None = None
    """The stop string or stop token that ended it."""

    def to_wire(self) -> dict[str, Any]:
        """Return the ending as a plain dict without empty parts."""
        wire = {
            "finish_reason": self.finish_reason,
            "tokens": self.tokens,
            "text_length": self.text_length,
            "stop": self.stop,
        }
        return {name: value for name, value in wire.items() if value is not None}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Build from a plain dict."""
        reason, length, stop = wire.get("finish_reason"), wire.get("text_length"), wire.get("stop")
        return cls(
            finish_reason=None if reason is None else _known(FinishReason, text(reason), FinishReason.STOP),
            tokens=integer(wire["tokens"]),
            text_length=None if length is None else integer(length),
            stop=stop if stop is None else integer(stop) if type(stop) is int else text(stop),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts: prompt, output of all choices, and the prompt tokens that a cache saved."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def to_wire(self) -> dict[str, int]:
        """Return the usage as a plain dict."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Build from a plain dict; counts that a later version may add are ignored."""
        cached_tokens = integer(wire.get("cached_tokens", 0))
        return cls(integer(wire["prompt_tokens"]), integer(wire["completion_tokens"]), cached_tokens)


@dataclass(frozen=True, slots=True)
class Terminal:
    """The one event that ends a reply log. It carries the last tokens.

    With `error`, the request ended early (cancelled, expired, invalid ...) and `message` says why; without it, every
    choice has a finish reason. `timings` are milliseconds: queue_ms, prefill_ms, total_ms.
    """

    endings: tuple[Ending, ...]
    usage: Usage
    runs: tuple[Run, ...] = ()
    error: ErrorCode | None = None
    message: str | None = None
    field_name: str | None = None
    """The field at fault, for invalid requests."""
    timings: Mapping[str, float] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """`finished`, or `error`."""
        return "error" if self.error else "finished"

    @property
    def outcome(self) -> str:
        """How the request ended, in one word: the error's code, or the finish reason of its first choice."""
        return str(self.error or self.endings[0].finish_reason)

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a plain dict."""
        wire: dict[str, Any] = {
            "output": [run.to_wire() for run in self.runs],
            "choices": [ending.to_wire() for ending in self.endings],
            "usage": self.usage.to_wire(),
            "timings": dict(self.timings),
        }
        if self.error:
            wire["error"] = {"code": str(self.error), "message": self.message or str(self.error)}
            if self.field_name:
                wire["error"]["field"] = self.field_name
        return wire


Event = Started | PromptRun | Output | Terminal


def encode_event(event: Event, form: Form) -> tuple[str, str, str, bytes]:
    """Return the flat field list of a reply entry, `type <type> payload <bytes>`, for XADD."""
    return "type", event.type, "payload", encode_payload(event, form)


def encode_payload(event: Event, form: Form) -> bytes:
    """Return the payload alone. A single msgpack run, which workers write for each token, is assembled from parts."""
    if form is Form.MSGPACK and type(event) is Output and len(event.runs) == 1:
        run = event.runs[0]
        if run.logprobs is None:
            return pack_run(run.choice, run.position, run.tokens)
    return encode(event.to_wire(), form)


def pack_run(choice: int, position: int, tokens: Sequence[int]) -> bytes:
    """Return the msgpack payload of a tokens event of one run without log probabilities."""
    packed = pack_value(choice), _RUN_POSITION, pack_value(position), _RUN_TOKENS, pack_value(tokens)
    return b"%b%b%b%b%b%b" % (_RUN_CHOICE, *packed)


_RUN_CHOICE = b"\x81\xa6output\x91\x83\xa6choice"
_RUN_POSITION, _RUN_TOKENS = b"\xa8position", b"\xa6tokens"
TOKEN_PARTS = _RUN_CHOICE + b"\x00" + _RUN_POSITION + b"\xce", _RUN_TOKENS + b"\x91\xce"
"""The constant parts of `pack_run(0, position, [token])`, for callers that pack many: first part, position, second
part, token. Both numbers are 32-bit big-endian."""


def decode_event(fields: Mapping[bytes, bytes]) -> Event:
    """Return the event in a reply entry; raise InvalidRequest if it is not an event of this version."""
    kind = str(fields.get(b"type", b""), "utf-8", "replace")
    wire = decode(fields.get(b"payload", b""))
    try:
        if kind == "tokens":
            return Output(_runs(wire))
        if kind == "started":
            return _started(wire)
        if kind == "prompt":
            return PromptRun.from_wire(wire)
        if kind in ("finished", "error"):
            return _terminal(kind, wire)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidRequest("payload", wire, f"a {kind} event ({error!r})") from None
    raise InvalidRequest("type", kind, "started, prompt, tokens, finished, error")


def _runs(wire: Mapping[str, Any]) -> tuple[Run, ...]:
    return tuple([Run.from_wire(run) for run in wire["output"]])


def _started(wire: Mapping[str, Any]) -> Started:
    traceparent, prompt_logprobs = wire.get("traceparent"), wire.get("prompt_logprobs")
    return Started(
        worker=text(wire["worker"]),
        model=text(wire["model"]),
        tenant=text(wire["tenant"]),
        priority_class=text(wire["class"]),
        entry=text(wire["entry"]),
        seed=seed(wire["seed"]),
        prompt_tokens=integer(wire["prompt_tokens"]),
        n=integer(wire["n"]),
        traceparent=None if traceparent is None else text(traceparent),
        answer_format=text(wire.get("answer_format", "")),
        prompt_logprobs=None if prompt_logprobs is None else integer(prompt_logprobs),
    )


def _known(kind: type[Named], name: str, otherwise: Named) -> Named:
    """Map a value of a later version to `otherwise`: skipping the ending would have the request computed again."""
    try:
        return kind(name)
    except ValueError:
        return otherwise


def _terminal(kind: str, wire: Mapping[str, Any]) -> Terminal:
    endings = tuple(Ending.from_wire(ending) for ending in wire["choices"])
    if kind == "finished" and not endings:
        raise ValueError("no choice finished")
    error = wire["error"] if kind == "error" else {}
    message, field_name = error.get("message"), error.get("field")
    code = _known(ErrorCode, text(error["code"]), ErrorCode.ENGINE_ERROR) if kind == "error" else None
    if code is not None and code != error["code"]:
        message = error["code"] if message is None else f"{error['code']}: {text(message)}"
    return Terminal(
        endings=endings,
        usage=Usage.from_wire(wire["usage"]),
        runs=_runs(wire),
        error=code,
        message=None if message is None else text(message),
        field_name=None if field_name is None else text(field_name),
        timings={text(name): number(value) for name, value in wire["timings"].items()},
    )
