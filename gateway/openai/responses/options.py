"""The gateway options in a body of /v1/responses."""

from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from orcastream.gateway.openai.options import Metadata, Options, check_stream_options
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.limits import ID_PATTERN, MAX_LOGPROBS

LOGPROBS: Final = "message.output_text.logprobs"
INCLUDED: Final = (LOGPROBS, "reasoning.encrypted_content")
"""Values of `include`; reasoning is always returned as plain text."""


class ResponseStreamOptions(BaseModel):
    """What a stream contains in addition to its events."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    include_obfuscation: bool | None = Field(
        False, description="Padding against traffic analysis; it does not change the answer and is not added."
    )


class ResponseOptions(Options):
    """Options that the response repeats, except the sampling parameters; and how it is made and kept."""

    background: bool = Field(False, description="Return at once, and continue without a client; needs `store`.")
    client_metadata: dict[str, Any] = Field({}, description="No effect: what a client says about itself.")
    include: list[str] = Field([], description=f"Any of {', '.join(INCLUDED)}.")
    instructions: str | None = Field(None, description="A system message before the input.")
    max_output_tokens: int | None = Field(None, ge=1, description="Longest answer; none: the context's remaining room.")
    metadata: Metadata = Field({}, description="Returned in the response.")
    parallel_tool_calls: bool = True
    previous_response_id: str | None = Field(
        None, pattern=f"^{ID_PATTERN.pattern}$", description="A stored response whose conversation is continued."
    )
    reasoning: dict[str, Any] = Field({}, description="`effort`, if the model's chat template reads it.")
    store: bool = Field(True, description="The response can be retrieved, for `retention_s` after its end.")
    stream_options: ResponseStreamOptions | None = None
    text: dict[str, Any] = Field({}, description="`format`: the format that the answer follows.")
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = Field([])
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS, description=f"Number of likeliest tokens; with {LOGPROBS}.")
    truncation: Literal["disabled"] = Field(
        "disabled", description="A conversation longer than the context is refused."
    )

    @model_validator(mode="after")
    def _response_agrees(self) -> Self:
        if self.background and not self.store:
            raise InvalidRequest("store", self.store, "true with background=true")
        if self.stream_options is not None:
            check_stream_options(self.stream_options, is_stream=self.stream)
        if self.top_logprobs and LOGPROBS not in self.include:
            raise InvalidRequest("top_logprobs", self.top_logprobs, f"0 unless include has {LOGPROBS}")
        return self


def check_included(field: str, names: object) -> list[str]:
    """Return the names. Raises InvalidRequest for an unknown one."""
    if not isinstance(names, list):
        raise InvalidRequest(field, names, f"an array of {', '.join(INCLUDED)}")
    for name in names:
        if name not in INCLUDED:
            raise InvalidRequest(field, name, f"{', '.join(INCLUDED)}; nothing else is implemented")
    return names
