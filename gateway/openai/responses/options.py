"""What a body of /v1/responses asks the gateway for."""

from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from orcastream.gateway.openai.options import Metadata, Options, check_stream_options
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.limits import ID_PATTERN, MAX_LOGPROBS

LOGPROBS: Final = "message.output_text.logprobs"
INCLUDED: Final = (LOGPROBS, "reasoning.encrypted_content")
"""What may be asked for besides; the content of reasoning is told as it is."""


class ResponseStreamOptions(BaseModel):
    """What a stream carries besides its events."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    include_obfuscation: bool = Field(
        False, description="Padding against traffic analysis, which does not change the answer: there is none."
    )


class ResponseOptions(Options):
    """All that is told again in the response, the sampling parameters apart; and how it is made and kept."""

    background: bool = Field(False, description="Answer at once, and run on without a client; needs `store`.")
    include: list[str] = Field([], description=f"Of {', '.join(INCLUDED)}.")
    instructions: str | None = Field(None, description="A system message before the input.")
    max_output_tokens: int | None = Field(None, ge=1, description="Longest answer; none: what the context leaves.")
    metadata: Metadata = Field({}, description="Told again in the response.")
    parallel_tool_calls: bool = True
    previous_response_id: str | None = Field(
        None, pattern=f"^{ID_PATTERN.pattern}$", description="A stored response whose conversation goes on."
    )
    reasoning: dict[str, Any] = Field({}, description="`effort`, where the model's chat template reads it.")
    store: bool = Field(True, description="The response can be retrieved, for `retention_s` after its end.")
    stream_options: ResponseStreamOptions | None = None
    text: dict[str, Any] = Field({}, description="`format`: what the answer follows.")
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = Field([])
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS, description=f"So many likeliest tokens; with {LOGPROBS}.")
    truncation: Literal["disabled"] = Field("disabled", description="A conversation beyond the context is refused.")

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
    """The names themselves; InvalidRequest for one that nobody knows."""
    if not isinstance(names, list):
        raise InvalidRequest(field, names, f"an array of {', '.join(INCLUDED)}")
    for name in names:
        if name not in INCLUDED:
            raise InvalidRequest(field, name, f"{', '.join(INCLUDED)}; nothing else is implemented")
    return names
