"""The limits that a model adds to those of the contract."""

from dataclasses import dataclass

from schemas.errors import InvalidRequest
from schemas.request import Payload


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Vocabulary and context of a served model, and the largest request that its KV cache can ever hold, in tokens."""

    vocab_size: int
    max_model_len: int
    max_cached_tokens: int | None = None

    @property
    def max_total_tokens(self) -> int:
        """Most prompt and output tokens that one choice may have."""
        if self.max_cached_tokens is None:
            return self.max_model_len
        return min(self.max_model_len, self.max_cached_tokens)

    def resolve_max_tokens(self, payload: Payload) -> int:
        """The bound on output tokens that holds for `payload`: what it asks for, or what the context leaves."""
        room = self.max_total_tokens - len(payload.prompt)
        return room if payload.max_tokens is None else payload.max_tokens

    def check(self, payload: Payload) -> None:
        """InvalidRequest where `payload` asks for what this model cannot do."""
        room = self.max_total_tokens - len(payload.prompt)
        if room < 1:
            raise InvalidRequest(
                "prompt",
                f"{len(payload.prompt)} tokens",
                f"at most {self.max_total_tokens - 1} tokens (context {self.max_model_len})",
            )
        if payload.max_tokens is not None and payload.max_tokens > room:
            raise InvalidRequest(
                "max_tokens", payload.max_tokens, f"at most {room} after a prompt of {len(payload.prompt)} tokens"
            )
        if payload.min_tokens > room:
            raise InvalidRequest(
                "min_tokens", payload.min_tokens, f"at most {room} after a prompt of {len(payload.prompt)} tokens"
            )
        for field, ids in (("prompt", payload.prompt), ("stop_token_ids", payload.stop_token_ids)):
            worst = max(ids, default=0)
            if worst >= self.vocab_size:
                raise InvalidRequest(
                    f"{field}.{ids.index(worst)}", worst, f"token ids below the vocabulary size {self.vocab_size}"
                )
