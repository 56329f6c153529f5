"""The structures of a whole decoder's operator; src/decoder.h describes them."""

import ctypes


class Norm(ctypes.Structure):
    """The addresses of a norm's weights, and its kind."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        ("width", ctypes.c_int64),
        ("epsilon", ctypes.c_float),
        ("centers", ctypes.c_int32),
    ]


NORMS = ("input_norm", "output_norm", "mlp_norm", "down_norm", "query_norm", "key_norm")
"""Those of a layer."""


class DecoderLayer(ctypes.Structure):
    """The addresses of one layer's weights, and its table of angles."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("projections", "output", "gate_up", "down", "mixture")),
        *((name, ctypes.c_void_p) for name in (*NORMS, "sinks")),
        ("table", ctypes.c_int64),
    ]


class Decoder(ctypes.Structure):
    """The addresses of a model's weights, and its shape."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("layers", "embedding", "shared", "final_norm", "head")),
        *((name, ctypes.c_int64) for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads")),
        *((name, ctypes.c_int64) for name in ("head_size", "rotary_size", "intermediate_size")),
        *((name, ctypes.c_float) for name in ("embedding_factor", "residual_factor", "logit_factor", "logit_cap")),
        *((name, ctypes.c_int32) for name in ("is_gated", "is_parallel", "by_neighbors", "activation", "format")),
    ]


class LowRank(ctypes.Structure):
    """The change of an adapter to one linear layer."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("down", "up")]


AdapterLayer = LowRank * 4
"""The changes of projections, output, gate_up and down."""


class Adapter(ctypes.Structure):
    """An adapter, and the rows that it changes."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("layers", "rows", "kept")),
        *((name, ctypes.c_int64) for name in ("num_rows", "num_kept")),
    ]


class LayerCache(ctypes.Structure):
    """The cache of a layer, and its group."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("keys", "values", "key_scales", "value_scales")),
        ("group", ctypes.c_int64),
    ]


class AngleTable(ctypes.Structure):
    """The angles of all positions."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("cosines", "sines")]


class Buffer(ctypes.Structure):
    """Working memory for rows."""

    _fields_ = [("data", ctypes.c_void_p), ("stride", ctypes.c_int64)]


class DecoderCall(ctypes.Structure):
    """One iteration."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("ids", "positions", "tables", "rows")),
        *((name, ctypes.c_void_p) for name in ("logits", "highest", "likeliest")),
        *((name, Buffer) for name in ("hidden", "normed", "projected", "attended", "gate_up", "gated", "change")),
        *((name, ctypes.c_void_p) for name in ("gathered", "inner", "added", "caches", "attention", "adapters")),
        *((name, ctypes.c_int64) for name in ("num_tokens", "num_rows", "num_adapters")),
    ]
