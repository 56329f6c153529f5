"""The parameters of a body that concern the gateway rather than the engine."""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import PriorityClass

MAX_METADATA: Final = 16
_SHORT, _LONG = 64, 512
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=_SHORT)], Annotated[str, Field(max_length=_LONG)]],
    Field(max_length=MAX_METADATA),
]
_CLASS_OF_TIER: Final[dict[str, PriorityClass]] = {
    "auto": "normal",
    "default": "normal",
    "flex": "low",
    "priority": "high",
}


@dataclass(frozen=True, slots=True)
class UsageWanted:
    """Where a stream contains token counts."""

    at_end: bool = False
    in_every_chunk: bool = False


NO_USAGE: Final = UsageWanted()


def _without_zero(value: object) -> object:
    """Map 0, which vLLM's clients send for no priority, to None."""
    return None if type(value) is int and value == 0 else value


def check_stream_options(value: BaseModel, *, is_stream: bool) -> None:
    """Raise InvalidRequest if stream options are set without a stream."""
    if not is_stream:
        raise InvalidRequest("stream_options", value.model_dump(exclude_unset=True), "only together with stream=true")


class StreamOptions(BaseModel):
    """What a stream contains in addition to text."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    include_usage: bool | None = Field(False, description="A last chunk with the token counts.")
    continuous_usage_stats: bool | None = Field(False, description="The token counts so far in every chunk.")
    include_obfuscation: bool | None = Field(
        False, description="Padding against traffic analysis; it does not change the answer and is not added."
    )


class Hints(BaseModel):
    """Parameters that cannot change the answer: accepted, checked for their form, and without effect here."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    prompt_cache_key: str | None = Field(
        None, max_length=_LONG, description="No effect: prefixes are found by their content."
    )
    prompt_cache_options: dict[str, Any] | None = Field(None, description="No effect, as `prompt_cache_key`.")
    prompt_cache_retention: str | None = Field(None, max_length=_SHORT, description="No effect, as `prompt_cache_key`.")
    safety_identifier: str | None = Field(None, max_length=_LONG, description="No effect.")


class Options(Hints):
    """A client's options for the gateway, at every generating endpoint."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    stream: bool = False
    user: str | None = Field(None, max_length=256, description="The end user of the request; written to the log.")
    priority: Annotated[PriorityClass | None, BeforeValidator(_without_zero)] = Field(
        None, description="The class in which the request waits; none: `normal`, or as `service_tier` says."
    )
    service_tier: Literal["auto", "default", "flex", "priority"] | None = Field(
        None, description="OpenAI's name for a class: `flex` is `low`, `priority` is `high`, others are `normal`."
    )
    timeout: float | None = Field(None, gt=0, description="Seconds until the request expires.")
    deadline_ms: int | None = Field(
        None, ge=0, description="When the request expires, in milliseconds of Unix time, instead of `timeout`. [ms]"
    )
    request_id: str | None = Field(None, description="The client's own id; posting it again gives the same answer.")
    durable: bool = Field(False, description="Accept the request only once Redis has it on disk.")
    add_special_tokens: bool | None = Field(
        None,
        description="Add the special tokens that the model expects around a text; none: to a text, but not to a chat.",
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        tier = self.service_tier
        if tier not in (None, "auto") and self.priority not in (None, _CLASS_OF_TIER[tier]):
            raise InvalidRequest(
                "service_tier", tier, f"one that means the priority {self.priority}, or only one of the two"
            )
        if self.timeout is not None and self.deadline_ms is not None:
            raise InvalidRequest("deadline_ms", self.deadline_ms, "only one of timeout and deadline_ms")
        return self

    @property
    def priority_class(self) -> PriorityClass:
        """The class of the request."""
        return self.priority or _CLASS_OF_TIER[self.service_tier or "auto"]

    @property
    def tier(self) -> str | None:
        """The client's name of the class, if that is not a priority."""
        return self.service_tier if self.priority is None else None

    @property
    def usage(self) -> UsageWanted:
        """Where the client wants token counts in a stream."""
        return NO_USAGE


def _boolean(value: object) -> bool:
    """Require a boolean: a literal also accepts values equal to it, such as 0 for false."""
    if not isinstance(value, bool):
        raise ValueError("False")
    return value


class ChoicesOptions(Options):
    """Options of completions and chats."""

    metadata: Metadata | None = Field(None, description="No effect: nothing is stored under it.")
    prediction: dict[str, Any] | None = Field(None, description="No effect: a hint to compute faster.")
    store: Annotated[Literal[False], BeforeValidator(_boolean)] = Field(
        False, description="Answers are kept for `retention_s` and not stored."
    )
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _streams(self) -> Self:
        if self.stream_options is not None:
            check_stream_options(self.stream_options, is_stream=self.stream)
        return self

    @property
    def usage(self) -> UsageWanted:
        """See Options."""
        asked = self.stream_options
        if asked is None:
            return NO_USAGE
        return UsageWanted(bool(asked.include_usage), bool(asked.continuous_usage_stats))
