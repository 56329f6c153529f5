"""One request body of OpenAI's API, read and checked. Nothing in it is ignored."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.json_body import read_json_object
from gateway.kind import Kind
from gateway.messages import check_text, read_messages
from gateway.neutral import drop_neutral
from schemas.errors import InvalidRequest
from schemas.explain import first_complaint
from schemas.keys import PriorityClass, check_id

Prompt = str | list[int] | list[dict[str, str]]
"""Text, token ids, or the messages of a chat."""

_SAMPLING = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "stop_token_ids",
    "ignore_eos",
)
_CANDIDATES = ("n", "best_of", "use_beam_search", "length_penalty", "early_stopping")
_SERVICE = ("cache_salt", "ttft_slo_ms", "tbt_slo_ms", "on_disconnect")
PAYLOAD_NAMES = frozenset({*_SAMPLING, *_CANDIDATES, *_SERVICE})
"""What goes into the payload as it is; schemas check it."""

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for completions; a chat may fill the context."""


class StreamOptions(BaseModel):
    """What a stream carries beside text."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    include_usage: bool = Field(False, description="A last chunk with the token counts.")
    include_obfuscation: Literal[False] = Field(False, description="Padding against traffic analysis: not implemented.")


class Options(BaseModel):
    """The parameters that concern the gateway rather than the engine."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    model: Annotated[str, Field(min_length=1, max_length=512)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, max_length=256, description="Whom the client asks for; written to the log.")
    priority: PriorityClass = "normal"
    timeout: float | None = Field(None, gt=0, description="Seconds until the request expires.")
    request_id: str | None = Field(None, description="The client's own id; posting it again gives the same answer.")
    durable: bool = Field(False, description="Accept the request only once Redis has it on disk.")


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A checked body: the prompt as it came, the payload's parameters, and the gateway's own options."""

    kind: Kind
    prompt: Prompt
    parameters: dict[str, Any]
    options: Options
    max_tokens_name: str = "max_tokens"
    """What the client called it."""

    @property
    def include_usage(self) -> bool:
        """Does the client want the token counts at the end of the stream?"""
        return self.options.stream_options is not None and self.options.stream_options.include_usage


def parse_body(kind: Kind, raw: bytes, max_tokens: int) -> ApiRequest:
    """The request in an HTTP body; InvalidRequest or ApiError naming the first parameter that is wrong.

    `max_tokens` is what the context takes: an array of many more ids is not read.
    """
    body = drop_neutral(read_json_object(raw, max_tokens), _implemented(kind))
    max_tokens_name = _take_max_completion_tokens(kind, body)
    prompt = _take_prompt(kind, body)
    parameters = {name: body.pop(name) for name in list(body) if name in PAYLOAD_NAMES}
    if "stop" in body:
        parameters["stop"] = _stops(body.pop("stop"))
    if parameters.get("top_k") == -1:  # how other servers write 'all'
        del parameters["top_k"]
    if body.get("stream_options") is not None and body.get("stream") is not True:
        raise InvalidRequest("stream_options", body["stream_options"], "only together with stream=true")
    try:
        options = Options.model_validate(body)
    except ValidationError as error:
        raise first_complaint(error, "body") from None
    if options.request_id is not None:
        check_id(options.request_id, "request_id")
    return ApiRequest(kind, prompt, parameters, options, max_tokens_name)


def _implemented(kind: Kind) -> frozenset[str]:
    """The parameters that say something here; null leaves them at their defaults."""
    own = {"messages", "max_completion_tokens"} if kind is Kind.CHAT else {"prompt"}
    return PAYLOAD_NAMES.union(Options.model_fields, {"stop"}, own)


def _take_max_completion_tokens(kind: Kind, body: dict[str, Any]) -> str:
    """Chat's newer name of max_tokens becomes max_tokens; returns the name that the client used."""
    if kind is not Kind.CHAT or "max_completion_tokens" not in body:
        return "max_tokens"
    newer = body.pop("max_completion_tokens")
    if body.get("max_tokens", newer) != newer:
        raise InvalidRequest(
            "max_completion_tokens", newer, f"the same as max_tokens ({body['max_tokens']}), or one only"
        )
    body["max_tokens"] = newer
    return "max_completion_tokens"


def _take_prompt(kind: Kind, body: dict[str, Any]) -> Prompt:
    if kind is Kind.CHAT:
        return read_messages(body.pop("messages", None))
    return _plain_prompt(body.pop("prompt", None))


def _plain_prompt(value: object) -> str | list[int]:
    """Text or one array of token ids; an array that holds one prompt is that prompt."""
    allowed = "text, or one array of token ids; several prompts need several requests"
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return check_text("prompt", value)
    if not isinstance(value, list) or not value:
        raise InvalidRequest("prompt", value, allowed)
    if isinstance(value[0], str | list):
        raise InvalidRequest("prompt", f"{len(value)} prompts", allowed)
    return value


def _stops(value: object) -> list[Any]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise InvalidRequest("stop", value, "text, or an array of texts")
    return value
