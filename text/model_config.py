"""What a model's own files say about its vocabulary, context and end tokens. Reads JSON; no torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from schemas.model_limits import ModelLimits

_LENGTH_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length")


class ModelFilesError(ValueError):
    """A model's files are missing or do not say what is needed."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The facts that admission needs about a model."""

    limits: ModelLimits
    eos_token_ids: frozenset[int]
    architecture: str = ""

    @classmethod
    def load(cls, model: str, *, max_model_len: int | None = None) -> Self:
        """Read config.json and generation_config.json of a directory or hub id.

        `max_model_len` lowers the context that the model states. ModelFilesError where something needed is missing.
        """
        config = _read(model, "config.json")
        if config is None:
            raise ModelFilesError(f"model: got {model!r}, allowed: a directory or hub id with a config.json")
        return cls.read(config, _read(model, "generation_config.json") or {}, max_model_len=max_model_len)

    @classmethod
    def read(
        cls, config: Mapping[str, Any], generation: Mapping[str, Any], *, max_model_len: int | None = None
    ) -> Self:
        """From the two files' contents."""
        text = config.get("text_config") or config
        vocab_size = text.get("vocab_size") or config.get("vocab_size")
        if not isinstance(vocab_size, int):
            raise ModelFilesError(f"config.json: got no vocab_size (keys {', '.join(sorted(text))})")
        stated = next((text[name] for name in _LENGTH_NAMES if isinstance(text.get(name), int)), None)
        if stated is None and max_model_len is None:
            raise ModelFilesError(
                f"config.json: states no context length ({', '.join(_LENGTH_NAMES)}): set max_model_len"
            )
        length = min(found for found in (stated, max_model_len) if found is not None)
        eos = _ids(generation.get("eos_token_id"))
        if not eos:
            eos = _ids(text.get("eos_token_id")) or _ids(config.get("eos_token_id"))
        architectures = config.get("architectures") or [""]
        return cls(ModelLimits(vocab_size, length), eos, str(architectures[0]))


def _ids(value: object) -> frozenset[int]:
    found = value if isinstance(value, list) else [value]
    return frozenset(item for item in found if isinstance(item, int))


def _read(model: str, name: str) -> dict[str, Any] | None:
    folder = Path(model)
    path: str | Path | None = folder / name
    if not folder.is_dir():
        from transformers.utils import cached_file

        try:
            path = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
        except OSError as error:
            raise ModelFilesError(f"model: got {model!r}, allowed: a directory or hub id ({error})") from None
    if path is None or not Path(path).is_file():
        return None
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFilesError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ModelFilesError(f"{path}: got {type(content).__name__}, allowed: one JSON object")
    return content
