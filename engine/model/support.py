"""Recognizes, by their configuration, models that are known not to work in a flat batch."""

from collections.abc import Iterator
from typing import Any

from orcastream.engine.errors import UnsupportedModel


def refuse_unsupported(model_config: Any, max_model_len: int) -> None:
    """Raise UnsupportedModel with the reason, before any weight is loaded. The self-check covers the other models."""
    for reason in _reasons(model_config.get_text_config(), max_model_len):
        raise UnsupportedModel(f"{model_config.model_type}: {reason}")


def _reasons(config: Any, max_model_len: int) -> Iterator[str]:
    if getattr(config, "is_encoder_decoder", False):
        yield "an encoder-decoder model; the engine decodes only"
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        yield "its positions are alibi biases in the scores, which the attention interface does not receive"
    if getattr(config, "index_topk", None):
        yield "its layers choose the tokens to attend to (index_topk) by keys that attention is not handed"
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk and max_model_len > chunk:
        yield (
            f"attention_chunk_size={chunk} exists only in the mask, and a flat batch has none; it can run with "
            f"max_model_len of at most {chunk}"
        )
    for rope in _rope_parameters(config):
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        if rope.get("rope_type") == "longrope" and original and max_model_len > original:
            yield (
                "longrope rotary scaling looks at the longest sequence of the batch; it can run with max_model_len of "
                f"at most {original}, its original length"
            )


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """Return the rotary parameters of the model, or of each kind of its layers."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    per_kind = [value for value in rope.values() if isinstance(value, dict)]
    return per_kind or [rope]
