"""Checks that a checkpoint is complete and matches the model that its configuration describes."""

import json
import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils import cached_file

from orcastream.engine.errors import UnsupportedModel, one_line

_log = logging.getLogger(__name__)

_NAMED = 3
"""Number of keys that a message names; the others are counted."""
_BLOCK_SCALES = "_scale_inv"
"""Suffix that turns the name of a weight into the name of its scales, one per block."""


def refuse_unknown_quantization(model_config: Any) -> None:
    """Raise UnsupportedModel for a method unknown to transformers, which would take the packed numbers for weights."""
    for quantization in _quantizations(model_config):
        fields = quantization if isinstance(quantization, Mapping) else getattr(quantization, "__dict__", {})
        method = fields.get("quant_method")
        if fields.get("load_in_8bit") or fields.get("load_in_4bit"):
            continue  # bitsandbytes, from before methods had names
        if method not in AUTO_QUANTIZATION_CONFIG_MAPPING:
            known = ", ".join(sorted(AUTO_QUANTIZATION_CONFIG_MAPPING))
            raise UnsupportedModel(f"quantization_config.quant_method: got {method!r}, allowed: {known}")


def refuse_incomplete(model: PreTrainedModel, loaded: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel if weights do not come from the checkpoint; log tensors of it that are not used.

    `loaded` is the loading info of transformers, which fills missing weights with random numbers. It already omits
    tied weights, tensors that are never part of a checkpoint (recomputed buffers), and weights that the architecture
    declares optional.
    """
    mismatched = {key: (tuple(found), tuple(wanted)) for key, found, wanted in loaded["mismatched_keys"]}
    missing = sorted(set(loaded["missing_keys"]) - mismatched.keys())
    if missing:
        raise UnsupportedModel(f"the checkpoint lacks {_named(missing)}")
    for key, (found, wanted) in sorted(mismatched.items()):
        raise UnsupportedModel(f"the checkpoint's {key} has the shape {found}, the configuration says {wanted}")
    unexpected = sorted(loaded["unexpected_keys"])
    beyond = _beyond_layers(model, unexpected)
    if beyond:
        raise UnsupportedModel(f"the checkpoint has more layers than its configuration says: {_named(beyond)}")
    stray = [] if hasattr(model.config, "quantization_config") else _beside_weights(model, unexpected)
    if stray:
        raise UnsupportedModel(f"the checkpoint has weights that its configuration leaves out: {_named(stray)}")
    if unexpected:
        _log.warning("the checkpoint has tensors that the model does not use: %s", _named(unexpected))


def refuse_integer_weights(
    checkpoint: str, model_config: Any, model: PreTrainedModel, loaded: Mapping[str, Any]
) -> None:
    """Raise UnsupportedModel if weights are integers and no configuration says how to interpret them.

    `loaded` as above: transformers would use them as floating-point weights unchanged. Buffers may be integers.
    `model_config` is the checkpoint's own: a model that was dequantized on loading no longer has a quantization_config.
    """
    if _quantizations(model_config):
        return
    unused = set(loaded["unexpected_keys"])
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    files = list(_files(checkpoint, "*.safetensors")) or _files(checkpoint, "pytorch_model*.bin")
    for path in files:
        for key, dtype in _integers(path):
            if key not in unused and key.rpartition(".")[2] not in buffers:
                allowed = "floating point, or a quantization_config that says how to read it"
                raise UnsupportedModel(f"{path}: {key} is {dtype}, allowed: {allowed}")


def refuse_cut_blocks(checkpoint: str, model_config: Any, model: PreTrainedModel) -> None:
    """Raise UnsupportedModel if the last of the blocks that share a scale is smaller than the others.

    When transformers dequantizes 8-bit weights on loading, it divides each weight evenly by its number of scales.
    """
    sizes = [each for each in map(_block_size, _quantizations(model_config)) if each is not None]
    if not sizes or hasattr(model.config, "quantization_config"):
        return
    shapes: dict[str, list[int]] = {}
    for path in _files(checkpoint, "*.safetensors"):
        with safe_open(path, framework="pt") as file:
            shapes |= {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118 - no mapping
    for key, scales in shapes.items():
        weight = shapes.get(key.removesuffix(_BLOCK_SCALES), [])
        if not key.endswith(_BLOCK_SCALES) or len(scales) < 2 or len(weight) < 2:
            continue
        for length, count, block in zip(weight[-2:], scales[-2:], sizes[0], strict=True):
            if count > 1 and count == -(-length // block) and length % block:
                raise UnsupportedModel(
                    f"quantization_config.weight_block_size: got {list(sizes[0])}, allowed without a GPU that computes "
                    f"in 8 bits: divisors of {key.removesuffix(_BLOCK_SCALES)}, which has the shape {tuple(weight)}"
                )


def refuse_unfit_parts(error: Exception) -> None:
    """Raise UnsupportedModel naming a weight whose parts in the checkpoint (e.g. experts) do not fit together.

    transformers reports this only in a table in its log; the loading info is in a frame of `error`, which it raised.
    """
    for frame, _ in walk_tb(error.__traceback__):
        unfit = getattr(frame.f_locals.get("loading_info"), "conversion_errors", None) or {}
        for key, text in sorted(unfit.items()):
            detail = text.splitlines()[-2:][0]
            raise UnsupportedModel(f"the checkpoint's parts of {key} are missing or do not fit together ({detail})")


def refuse_damaged_files(model: str) -> None:
    """Raise UnsupportedModel naming the first weight or index file that cannot be read.

    `model` is a directory, or a hub id, whose local files are checked.
    """
    for path in _files(model, "*.safetensors", "*.index.json", "pytorch_model*.bin"):
        try:
            path.open("rb").close()
        except OSError as error:  # which safetensors calls a missing file
            raise UnsupportedModel(f"{path}: cannot be read ({error.strerror})") from None
        problem = _problem(path)
        if problem is not None:
            raise UnsupportedModel(f"{path}: damaged or cut short ({problem})")


def refuse_damaged_generation_config(model: str) -> None:
    """Raise UnsupportedModel if generation_config.json cannot be read; transformers would silently use defaults."""
    for path in _files(model, "generation_config.json"):
        problem = _problem(path)
        if problem is not None:
            raise UnsupportedModel(f"{path}: {problem}")


def _quantizations(model_config: Any) -> list[Any]:
    """Return the quantization configurations of the model and of its text model."""
    configs = (model_config, model_config.get_text_config())
    found = (getattr(config, "quantization_config", None) for config in configs)
    return [quantization for quantization in found if quantization is not None]


def _block_size(quantization: Any) -> tuple[int, int] | None:
    """Return the rows and columns of FP8 weights that share a scale; None for other methods."""
    fields = quantization if isinstance(quantization, Mapping) else vars(quantization)
    size = fields.get("weight_block_size", (128, 128))
    return (size[0], size[1]) if fields.get("quant_method") == "fp8" and size else None


def _named(keys: Collection[str]) -> str:
    first = ", ".join(list(keys)[:_NAMED])
    return f"{first} and {len(keys) - _NAMED} more" if len(keys) > _NAMED else first


def _beside_weights(model: PreTrainedModel, keys: Collection[str]) -> list[str]:
    """Return the keys that belong to modules with weights: without these tensors they compute something else."""
    modules = dict(model.named_modules())
    owners = ((key, modules.get(key.rpartition(".")[0])) for key in keys)
    return [key for key, owner in owners if owner is not None and any(True for _ in owner.parameters(recurse=False))]


def _beyond_layers(model: PreTrainedModel, keys: Collection[str]) -> list[str]:
    """Return the keys beyond the end of a module list that is longer in the checkpoint than in the configuration."""
    lists = {f"{name}.": len(found) for name, found in model.named_modules() if isinstance(found, torch.nn.ModuleList)}

    def is_beyond(key: str) -> bool:
        return any(
            (number := key[len(prefix) :].partition(".")[0]).isdecimal() and int(number) >= length
            for prefix, length in lists.items()
            if key.startswith(prefix)
        )

    return [key for key in keys if is_beyond(key)]


def _integers(path: Path) -> Iterator[tuple[str, str]]:
    """Yield names and types of the integer tensors in a file, without reading their values."""
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            types = [(key, file.get_slice(key).get_dtype()) for key in file.keys()]  # noqa: SIM118 - no mapping
            yield from ((key, dtype) for key, dtype in types if dtype.startswith(("I", "U", "BOOL")))
        return
    for key, tensor in torch.load(path, map_location="meta", weights_only=True).items():
        if isinstance(tensor, torch.Tensor) and not (tensor.is_floating_point() or tensor.is_complex()):
            yield key, str(tensor.dtype).removeprefix("torch.")


def _files(model: str, *patterns: str) -> Iterator[Path]:
    folder = Path(model)
    if not folder.is_dir():
        config = cached_file(model, "config.json", local_files_only=True)
        folder = Path(config).parent
    for pattern in patterns:
        yield from sorted(folder.glob(pattern))


def _problem(path: Path) -> str | None:
    """Return why a file cannot be read; None if it can, as far as can be told without reading all of it."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt"):
                return None
        if path.suffix == ".json":
            content = json.loads(path.read_text(encoding="utf-8"))
            return None if isinstance(content, dict) else f"got {type(content).__name__}, allowed: one JSON object"
        torch.load(path, map_location="meta", weights_only=True)
    except (SafetensorError, ValueError, OSError, RuntimeError, EOFError) as error:
        return one_line(error)
    return None
