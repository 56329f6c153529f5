"""Compiles the Triton kernels for a GPU that need not be present, and prints their resource usage; run as a script.

`python -m tests.engine.attention.compile_kernels 128 bf16 ""` takes head sizes, formats of queries and 8-bit formats of
the cache, each separated by commas. It prints one JSON object per kernel: shared memory, registers, bytes of spilled
registers, and the number of slow conversions of numbers.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from orcastream.engine.attention.triton.decode import merge_kernel, split_kernel
from orcastream.engine.attention.triton.formats import FORMATS, factors_of
from orcastream.engine.attention.triton.prefill import prefill_kernel
from orcastream.engine.attention.triton.tiles import decode_tile, prefill_tile
from orcastream.engine.attention.triton.write import write_kernel

NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int8: "i8",
    torch.float8_e4m3fn: "fp8e4nv",
}
HOPPER = GPUTarget("cuda", 90, 32)


def compiled(kernel: Any, pointers: dict[str, str], constants: dict[str, Any], **options: int) -> dict[str, int]:
    """`pointers` are the formats of the arguments that are not int32 or float."""
    floats = ("scale", "cap")
    signature = {
        name: "constexpr" if name in constants else pointers.get(name, "fp32" if name in floats else "i32")
        for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    aligned = ("stride", "query", "key", "value", "keys", "values", "output", "mixed", "logits", "vocab")
    aligned += ("hidden", "change", "factors", "normed", "rows", "angles", "head_norms", "gate_up")
    hints = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if name.endswith(aligned) and name not in constants and name != "table_stride"
    }
    made = triton.compile(ASTSource(kernel, signature, places, hints), target=HOPPER, options=options)
    return {"shared": made.metadata.shared, **usage(made.asm["cubin"])}


def usage(cubin: bytes) -> dict[str, int]:
    """Return registers per thread, bytes of stack, and how many instructions convert single numbers, an eighth as fast
    as others."""
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        resources, code = (
            subprocess.run([tools / tool, option, file.name], capture_output=True, text=True, check=True).stdout
            for tool, option in (("cuobjdump", "--dump-resource-usage"), ("nvdisasm", "-c"))
        )
    found = dict(re.findall(r"(REG|STACK):(\d+)", resources))
    slow = len(re.findall(r"\b(?:F2F|I2F)\.", code))
    return {"registers": int(found["REG"]), "stack": int(found["STACK"]), "slow_conversions": slow}


def attention(kernel: Any, tile: Any, size: int, dtype: torch.dtype, cache: torch.dtype) -> dict[str, int]:
    """The split or the prefill kernel, with four query heads to a key head."""
    kept, own = "*" + NAMES[cache], "*" + NAMES[dtype]
    quantized = cache.itemsize == 1
    pointers = dict.fromkeys(("keys", "values"), kept) | dict.fromkeys(("query", "output", "sinks"), own)
    pointers |= dict.fromkeys(("key_scales", "value_scales"), "*bf16" if quantized else kept)
    pointers |= dict.fromkeys(("tables", "splits", "offsets", "contexts"), "*i64")
    pointers |= {"mixed": "*fp32", "sizes": "*fp32"}
    constants = {
        "WINDOW": 0,
        "HEADS": 4,
        "BLOCK_SIZE": 16,
        "KEY_SIZE": size,
        "VALUE_SIZE": size,
        "TOKENS": tile.tokens,
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "BLOCK_K": tile.key_columns,
        "BLOCK_V": tile.value_columns,
        "QUANTIZED": quantized,
        "CAPPED": False,
        "SINKS": False,
        "FACTORS": factors_of(dtype),
        "FORMAT": FORMATS[dtype],
    }
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    return compiled(kernel, pointers, constants, num_warps=tile.warps, num_stages=tile.stages)


def kernels(sizes: list[int], dtypes: list[torch.dtype], caches: list[torch.dtype]) -> Iterator[dict[str, Any]]:
    """Yield the usage of each kernel."""
    for size in sizes:
        for dtype in dtypes:
            for cache in dict.fromkeys([dtype, *caches]):
                name = {"size": size, "dtype": NAMES[dtype], "cache": NAMES[cache]}
                tile = decode_tile(4, size, size, dtype)
                yield {"kernel": "split", **name, **attention(split_kernel, tile, size, dtype, cache)}
                tile = prefill_tile(4, size, size, dtype, quantized=cache.itemsize == 1)
                yield {"kernel": "prefill", **name, **attention(prefill_kernel, tile, size, dtype, cache)}
                yield {"kernel": "write", **name, **write(size, dtype, cache)}
            yield {"kernel": "merge", "size": size, "dtype": NAMES[dtype], **merge(size, dtype)}


def write(size: int, dtype: torch.dtype, cache: torch.dtype) -> dict[str, int]:
    """The kernel that writes keys and values to their blocks."""
    kept, own = "*" + NAMES[cache], "*" + NAMES[dtype]
    pointers = {"key": own, "value": own, "keys": kept, "values": kept, "slots": "*i64"}
    pointers |= dict.fromkeys(("key_scales", "value_scales"), "*bf16" if cache.itemsize == 1 else kept)
    constants = {
        "LARGEST": {1: 448.0}.get(cache.itemsize, 0.0),
        "FORMAT": FORMATS[cache],
        "KEY_SIZE": size,
        "VALUE_SIZE": size,
        "BLOCK_K": triton.next_power_of_2(size),
        "BLOCK_V": triton.next_power_of_2(size),
        "TOKENS": 16,
    }
    return compiled(write_kernel, pointers, constants)


def merge(size: int, dtype: torch.dtype) -> dict[str, int]:
    """The kernel that merges splits, with sinks."""
    own = "*" + NAMES[dtype]
    pointers = {"mixed": "*fp32", "sizes": "*fp32", "firsts": "*i64", "sinks": own, "output": own}
    constants = {
        "VALUE_SIZE": size,
        "BLOCK_V": triton.next_power_of_2(size),
        "MERGED": 16,
        "SINKS": True,
        "FORMAT": FORMATS[dtype],
    }
    return compiled(merge_kernel, pointers, constants, num_warps=2)


if __name__ == "__main__":
    named = {name: dtype for dtype, name in NAMES.items()}
    for found in kernels(
        [int(size) for size in sys.argv[1].split(",")],
        [named[name] for name in sys.argv[2].split(",")],
        [named[name] for name in sys.argv[3].split(",") if name],
    ):
        print(json.dumps(found), flush=True)
