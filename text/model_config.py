"""Vocabulary, context and end tokens from a model's own files. Reads JSON; needs no torch."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from orcastream.schemas.model_limits import ModelLimits, context_length


class ModelFilesError(ValueError):
    """A model's files are missing or incomplete, or require something unsupported; the message is one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(" ".join(reason.split()))


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The properties of a model that admission needs."""

    limits: ModelLimits
    eos_token_ids: frozenset[int]
    architecture: str = ""

    @classmethod
    def load(cls, model: str, *, max_model_len: int | None = None) -> Self:
        """Read config.json and generation_config.json of a directory or hub id.

        `max_model_len` lowers the model's context length. Raises ModelFilesError if something required is missing, the
        model needs its own code, or `max_model_len` exceeds the model's limit.
        """
        config = _read(model, "config.json")
        if config is None:
            raise ModelFilesError(f"model: got {model!r}, allowed: a directory or hub id with a config.json")
        return cls.read(config, _read(model, "generation_config.json") or {}, max_model_len=max_model_len)

    @classmethod
    def read(
        cls, config: Mapping[str, Any], generation: Mapping[str, Any], *, max_model_len: int | None = None
    ) -> Self:
        """Make it from the contents of the two files, with the architecture's defaults for missing fields."""
        text = config.get("text_config") or config
        stated = _lookup(config, text)
        vocab_size = stated("vocab_size") or config.get("vocab_size")
        if not isinstance(vocab_size, int):
            raise ModelFilesError(f"config.json: got no vocab_size (keys {', '.join(sorted(text))})")
        try:
            length = context_length(stated, max_model_len)
        except ValueError as error:
            raise ModelFilesError(str(error)) from None
        eos = _ids(generation.get("eos_token_id"))
        if not eos:
            eos = _ids(text.get("eos_token_id")) or _ids(config.get("eos_token_id"))
        architectures = config.get("architectures") or [""]
        return cls(ModelLimits(vocab_size, length), eos, str(architectures[0]))


def why_missing(model: str, error: Exception) -> str:
    """Return why a model cannot be read: where `error` cites the hub's rule for ids, that no such directory exists."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # it has no list of exports

    path = Path(model)
    if path.is_dir():
        return str(error)
    if path.exists():
        return "not a directory"
    try:
        validate_repo_id(model)
    except HFValidationError:
        return "no such directory"
    return str(error)


def _lookup(config: Mapping[str, Any], text: Mapping[str, Any]) -> Callable[[str], object]:
    """Return a look-up of fields as the worker sees them, or in the bare file if the architecture has no name."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = config.get("model_type")
    if kind is None:
        return text.get
    if kind not in CONFIG_MAPPING:
        if "auto_map" in config:
            raise ModelFilesError("config.json: the model wants to run code of its own (auto_map), which is never done")
        return text.get
    try:
        known = CONFIG_MAPPING[kind].from_dict(dict(config)).get_text_config()
    except Exception as error:  # each architecture checks its own fields, in its own way
        raise ModelFilesError(f"config.json: {error}") from None
    return lambda name: getattr(known, name, None)


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
            why = why_missing(model, error)
            raise ModelFilesError(f"model: got {model!r}, allowed: a directory or hub id ({why})") from None
    if path is None or not Path(path).is_file():
        return None
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFilesError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ModelFilesError(f"{path}: got {type(content).__name__}, allowed: one JSON object")
    return content
