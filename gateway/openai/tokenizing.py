"""Bodies of /tokenize and /detokenize, in vLLM's form."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from orcastream.schemas.sampling import TokenId

_MODEL = ConfigDict(frozen=True, extra="forbid", strict=True)


class TokenizeRequest(BaseModel):
    """Either a prompt or the messages of a chat."""

    model_config = _MODEL

    model: str | None = Field(
        None, max_length=512, description="Model whose tokenizer is used; none: the default model."
    )
    prompt: str | None = None
    messages: Any = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Variables of the model's chat template.")
    add_special_tokens: bool | None = Field(
        None,
        description="Add the special tokens that the model expects around a text; none: with a prompt, but not with "
        "messages.",
    )
    return_token_strs: bool = Field(False, description="Also return each token's text.")


class DetokenizeRequest(BaseModel):
    """Token ids."""

    model_config = _MODEL

    model: str | None = Field(
        None, max_length=512, description="Model whose tokenizer is used; none: the default model."
    )
    tokens: Annotated[list[TokenId], Field(min_length=1)]
