"""Bodies of /tokenize and /detokenize, as vLLM has them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from orcastream.schemas.sampling import TokenId

_MODEL = ConfigDict(frozen=True, extra="forbid", strict=True)


class TokenizeRequest(BaseModel):
    """A prompt, or the messages of a chat: one of them."""

    model_config = _MODEL

    model: str | None = Field(None, max_length=512, description="Whose tokenizer; none: that of the default model.")
    prompt: str | None = None
    messages: Any = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Variables of the model's chat template.")
    add_special_tokens: bool | None = Field(
        None,
        description="The special tokens that a model wants around a text; none: with a prompt, and not with messages.",
    )
    return_token_strs: bool = Field(False, description="Each token's own text, too.")


class DetokenizeRequest(BaseModel):
    """Token ids."""

    model_config = _MODEL

    model: str | None = Field(None, max_length=512, description="Whose tokenizer; none: that of the default model.")
    tokens: Annotated[list[TokenId], Field(min_length=1)]
