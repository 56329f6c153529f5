"""The limits that a model adds to those of the contract."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.limits import (
    MAX_PAYLOAD_BYTES,
    MAX_PROMPT_LOGPROBS,
    PAYLOAD_BYTES_BESIDE,
    PAYLOAD_BYTES_PER_TOKEN,
)

if TYPE_CHECKING:  # the engine, which uses this module, needs no package of the wire format
    from orcastream.schemas.request import Payload

_LENGTH_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length")
"""The names that model configurations use for the longest supported sequence, the usual name first."""


def context_length(stated: Callable[[str], object], asked: int | None) -> int:
    """Return the most tokens of prompt and output together; gateway and worker both use this function.

    `stated` looks up a name in the model's text configuration; `asked` is the setting max_model_len, which may only
    lower the stated value. Raises ValueError if it is higher, or if neither gives a value.
    """
    found = [value for value in map(stated, _LENGTH_NAMES) if isinstance(value, int) and value > 0]
    if not found and asked is None:
        raise ValueError(f"the model's configuration states no context length ({_LENGTH_NAMES[0]}); set max_model_len")
    if not found or asked is None:
        return found[0] if asked is None else asked
    if asked > found[0]:
        raise ValueError(f"max_model_len: got {asked}, allowed: at most {found[0]}, the model's own limit")
    return asked


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Vocabulary and context of a served model, and the largest request that its KV cache can ever hold, in tokens."""

    vocab_size: int
    max_model_len: int
    max_cached_tokens: int | None = None

    def lowered(self, lengths: Iterable[int], cached_tokens: Iterable[int]) -> "ModelLimits":
        """Return the limits of several workers serving the model: the shortest context and smallest cache reported."""
        return ModelLimits(
            self.vocab_size, min([self.max_model_len, *lengths]), min(cached_tokens, default=self.max_cached_tokens)
        )

    @property
    def max_total_tokens(self) -> int:
        """Most prompt and output tokens that one choice may have."""
        if self.max_cached_tokens is None:
            return self.max_model_len
        return min(self.max_model_len, self.max_cached_tokens)

    @property
    def max_payload_bytes(self) -> int:
        """The largest payload whose prompt can fit into the context; larger payloads need not be read."""
        return min(MAX_PAYLOAD_BYTES, PAYLOAD_BYTES_BESIDE + PAYLOAD_BYTES_PER_TOKEN * self.max_total_tokens)

    def resolve_max_tokens(self, payload: "Payload") -> int:
        """Return the bound on output tokens for `payload`: its own, or the rest of the context."""
        return self.fit(len(payload.prompt), max_tokens=payload.max_tokens, min_tokens=payload.min_tokens)

    @property
    def context(self) -> str:
        """The context in the words of OpenAI's API, from which programs conclude that they must shorten the prompt."""
        cache = "" if self.max_cached_tokens is None else f" (KV cache {self.max_cached_tokens})"
        return f"this model's maximum context length is {self.max_model_len} tokens{cache}"

    def fit(self, num_prompt_tokens: int, *, max_tokens: int | None, min_tokens: int) -> int:
        """Return the bound on output tokens; raise InvalidRequest if prompt and output do not fit."""
        room = self.max_total_tokens - num_prompt_tokens
        if room < 1:
            raise self.too_long(f"{num_prompt_tokens} tokens")
        for field, value in (("max_tokens", max_tokens), ("min_tokens", min_tokens)):
            if value is not None and value > room:
                allowed = f"at most {room} after a prompt of {num_prompt_tokens} tokens: {self.context}"
                raise InvalidRequest(field, value, allowed)
        return room if max_tokens is None else max_tokens

    def too_long(self, told: str) -> InvalidRequest:
        """Return the error for a prompt that does not fit; `told` is its length in words."""
        return InvalidRequest("prompt", told, f"at most {self.max_total_tokens - 1} tokens: {self.context}")

    def check(self, payload: "Payload") -> None:
        """Raise InvalidRequest if `payload` asks for something that this model cannot do."""
        self.resolve_max_tokens(payload)
        _check_prompt_logprobs(payload)
        biased = tuple(token for token, _ in payload.logit_bias)
        for field, ids in (
            ("prompt", payload.prompt),
            ("stop_token_ids", payload.stop_token_ids),
            ("logit_bias", biased),
        ):
            worst = max(ids, default=0)
            if worst >= self.vocab_size:
                raise InvalidRequest(
                    f"{field}.{ids.index(worst)}", worst, f"token ids below the vocabulary size {self.vocab_size}"
                )


def _check_prompt_logprobs(payload: "Payload") -> None:
    """Raise InvalidRequest if a reply would hold more of them than the contract allows."""
    if payload.num_prompt_logprobs <= MAX_PROMPT_LOGPROBS:
        return
    num_tokens = len(payload.prompt)
    most = MAX_PROMPT_LOGPROBS // num_tokens - 1
    allowed = f"{'null' if most < 0 else f'at most {most}'} with a prompt of {num_tokens} tokens"
    raise InvalidRequest("prompt_logprobs", payload.prompt_logprobs, allowed)
