"""How the tokens of one request are chosen and when it stops."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationInfo, field_validator

from orcastream.schemas.limits import (
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIASES,
    MAX_LOGPROBS,
    MAX_OUTPUT_TOKENS,
    MAX_REPETITION_PENALTY,
    MAX_SEED,
    MAX_STOP_TOKEN_IDS,
    MAX_TOKEN_ID,
    MIN_SEED,
)

TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
Bias = Annotated[tuple[TokenId, Annotated[float, Field(ge=-MAX_LOGIT_BIAS, le=MAX_LOGIT_BIAS)]], Field(strict=False)]


class SamplingParams(BaseModel):
    """Sampling and stop conditions of one request. Immutable; every field is checked on construction.

    repetition_penalty changes logits first, then logit_bias, frequency_penalty and presence_penalty. Filters apply in
    the order temperature, top_k, top_p, min_p. `temperature=0` is greedy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    max_tokens: int | None = Field(
        None, ge=0, le=MAX_OUTPUT_TOKENS, description="Most tokens to generate; none: until the context is full."
    )
    min_tokens: int = Field(
        0, ge=0, le=MAX_OUTPUT_TOKENS, description="EOS and stop tokens cannot be chosen before this many tokens."
    )
    temperature: float = Field(1.0, ge=0, le=100, description="0 is greedy.")
    top_k: int = Field(0, ge=0, le=MAX_TOKEN_ID, description="Keep the k most likely tokens; 0 keeps all.")
    top_p: float = Field(
        1.0, gt=0, le=1, description="Keep the smallest set of tokens whose probabilities reach this sum."
    )
    min_p: float = Field(0.0, ge=0, le=1, description="Drop tokens less likely than this share of the most likely one.")
    presence_penalty: float = Field(
        0.0, ge=-2, le=2, description="Subtracted from the logit of every token that the output contains."
    )
    frequency_penalty: float = Field(
        0.0, ge=-2, le=2, description="Subtracted from a token's logit once for each time the output contains it."
    )
    repetition_penalty: float = Field(
        1.0,
        gt=0,
        le=MAX_REPETITION_PENALTY,
        description="Divides the logit of every token of prompt and output if it is above 0, else multiplies it.",
    )
    logit_bias: Annotated[tuple[Bias, ...], FailFast()] = Field(
        (), max_length=MAX_LOGIT_BIASES, strict=False, description="Pairs of a token id and the bias for its logit."
    )
    seed: int | None = Field(
        None,
        ge=MIN_SEED,
        le=MAX_SEED,
        description="Randomness is a function of (seed, position) alone; none: derived from the id.",
    )
    stop_token_ids: Annotated[tuple[TokenId, ...], FailFast()] = Field(
        (), max_length=MAX_STOP_TOKEN_IDS, strict=False, description="Each ends the request, like EOS."
    )
    ignore_eos: bool = Field(False, description="Continue past the model's own EOS.")
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="Log probability of each chosen token and of this many likeliest ones."
    )

    @field_validator("logit_bias")
    @classmethod
    def _one_bias_each(cls, biases: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
        if len({token for token, _ in biases}) < len(biases):
            raise ValueError("one bias for each token id")
        return biases

    @field_validator("min_tokens")
    @classmethod
    def _min_within_max(cls, min_tokens: int, info: ValidationInfo) -> int:
        max_tokens = info.data.get("max_tokens")
        if max_tokens is not None and min_tokens > max_tokens:
            raise ValueError(f"at most max_tokens ({max_tokens})")
        return min_tokens
