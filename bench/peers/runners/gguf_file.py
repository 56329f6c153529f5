"""Conversion of a checkpoint to a GGUF file for llama.cpp, in bfloat16 or Q8_0."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ARCHITECTURES = {"Qwen3ForCausalLM": "qwen3", "Qwen2ForCausalLM": "qwen2"}
"""Architectures whose tensors are copied unchanged."""


def write_gguf(model: Path, dtype: str, into: Path) -> None:
    """Write weights and shape without a vocabulary. Raises ValueError for an unknown architecture."""
    import gguf

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (architecture,) = config["architectures"]
    if architecture not in _ARCHITECTURES:
        raise ValueError(f"architecture: got {architecture}, allowed: {', '.join(_ARCHITECTURES)}")
    writer = gguf.GGUFWriter(into, _ARCHITECTURES[architecture])
    _describe(writer, config)
    kind = {
        "bfloat16": gguf.GGMLQuantizationType.BF16,
        "float32": gguf.GGMLQuantizationType.F32,
        "int8": gguf.GGMLQuantizationType.Q8_0,
    }[dtype]
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == _ARCHITECTURES[architecture])
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, values in _tensors(model):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        own = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else kind
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), gguf.quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_parameters", config).get("rope_theta", 10000.0))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def _tensors(model: Path) -> Iterator[tuple[str, Any]]:
    """Yield names and values, in float32."""
    import numpy

    for file in sorted(model.glob("*.safetensors")):
        data = numpy.memmap(file, mode="r")
        length = int.from_bytes(data[:8].tobytes(), "little")
        header: dict[str, Any] = json.loads(data[8 : 8 + length].tobytes())
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            yield name, _float32(data[begin:end], entry["dtype"]).reshape(entry["shape"])


def _float32(data: Any, dtype: str) -> Any:
    import numpy

    if dtype == "BF16":
        return (data.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
    if dtype in ("F16", "F32"):
        return data.view(numpy.float16 if dtype == "F16" else numpy.float32).astype(numpy.float32)
    raise ValueError(f"dtype of a weight: got {dtype}, allowed: BF16, F16, F32")
