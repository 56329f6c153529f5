"""The settings of an engine."""

from dataclasses import dataclass, fields, replace
from math import inf
from typing import Literal, get_args, get_origin

from orcastream.engine.schedule.policies import POLICIES
from orcastream.schemas.keys import CLASS_WEIGHT, MAX_CLASS_WEIGHT

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]
DeviceName = Literal["auto", "cpu", "cuda"]
CacheDTypeName = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"]
Admission = Literal["paged", "reserve"]
Preemption = Literal["auto", "recompute", "swap"]
Overlap = Literal["auto", "on", "off"]
ModelPasses = Literal["auto", "off"]
CudaGraphs = Literal["auto", "on", "off"]
WeightDTypeName = Literal["auto", "int8"]
BudgetName = Literal["fixed", "adaptive"]


_CPU_TOKENS = 256
"""On a CPU longer prefills gain no speed and delay decodes for longer."""

_GPU_TOKENS = 2048
"""With fewer tokens a GPU computes an iteration faster than Python launches its kernels."""

_CPU_REQUESTS = 32
"""Beyond this many decodes a CPU is bound by computation, not memory, and requests slow each other down."""

_GPU_REQUESTS = 256
"""A GPU decodes this many requests in little more time than one, because it is bound by reading the weights."""

_OPTIONAL = ("max_num_batched_tokens", "max_batch_size", "max_model_len", "kv_cache_memory")
_LEAST = {**dict.fromkeys((*_OPTIONAL, "block_size", "max_adapter_rank"), 1), "host_cache_memory": 0, "max_adapters": 0}
"""Settings that are integers, and the least value of each."""


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine. Raises ValueError, which names the invalid field.

    `model` is a directory or a hub id. `dtype` auto is the checkpoint's own dtype on CUDA, and on a CPU with bfloat16
    instructions if the checkpoint is bfloat16; otherwise float32.
    `kv_cache_memory` is in bytes; by default the cache takes the memory that a profiling pass leaves free on CUDA, and
    a modest share of the available memory on a CPU. `max_num_batched_tokens` is the token budget of an iteration (None:
    256, on CUDA 2,048, and never less than `max_batch_size`). `max_batch_size` is the maximum number of running
    requests; it may not exceed the token budget (None: 32, on CUDA 256, or the token budget if that is smaller).
    `max_model_len` (tokens of prompt and output) may only lower the model's own limit. With `self_check`
    `OrcaEngine.load` checks the model before it assembles the engine.

    `policy` is the name of a scheduling policy, `admission` its memory rule. With `token_budget` adaptive, prefill
    chunks shrink so that the time between tokens stays under the tightest target of the running requests, or under
    `tbt_target_ms` (milliseconds; only with that budget) if they have none. `kv_cache_dtype` is the dtype of stored
    keys and values; auto: the model's own. `host_cache_memory` (bytes) holds swapped-out requests and evicted prefixes.
    `preemption` auto swaps if that is measured to be cheaper than recomputing; swap is refused without host cache
    memory. `class_weight` is the factor by which a request of one class ages faster than one of the class below. With
    `overlap` an iteration is planned while the previous one computes; auto: on asynchronous devices. With `cuda_graphs`
    iterations that only decode are captured at startup and replayed; auto: on CUDA, if backend and model allow it.
    `model_passes` auto makes a model that `OrcaEngine.load` loads faster: by compiled operators on a CPU, if there are
    any, by Triton kernels on a GPU. `weight_dtype` int8 makes compiled operators compute linear layers with 8-bit
    weights (one scale per output channel) and inputs rounded to 8 bits (one scale per token); auto: weights as loaded.
    `max_adapters` is the number of LoRA adapters in memory at once, for which a GPU reserves memory (0: none can be
    loaded), `max_adapter_rank` the highest rank that an adapter may have.
    """

    model: str
    dtype: DTypeName = "auto"
    device: DeviceName = "auto"
    block_size: int = 16
    kv_cache_memory: int | None = None
    max_num_batched_tokens: int | None = None
    max_batch_size: int | None = None
    max_model_len: int | None = None
    policy: str = "fcfs"
    admission: Admission = "paged"
    token_budget: BudgetName = "fixed"
    tbt_target_ms: float | None = None
    class_weight: float = CLASS_WEIGHT
    prefix_cache: bool = True
    kv_cache_dtype: CacheDTypeName = "auto"
    host_cache_memory: int = 0
    preemption: Preemption = "auto"
    overlap: Overlap = "auto"
    cuda_graphs: CudaGraphs = "auto"
    attention_backend: str = "auto"
    model_passes: ModelPasses = "auto"
    weight_dtype: WeightDTypeName = "auto"
    max_adapters: int = 0
    max_adapter_rank: int = 64
    self_check: bool = True

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model: got an empty name, allowed: a directory or a hub id")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}: got {value!r}, allowed: an integer of at least {least}")
        if self.tbt_target_ms is not None and not 0 < self.tbt_target_ms < inf:
            raise ValueError(f"tbt_target_ms: got {self.tbt_target_ms!r}, allowed: more than 0 milliseconds, or None")
        if not 1 <= self.class_weight <= MAX_CLASS_WEIGHT:
            raise ValueError(f"class_weight: got {self.class_weight!r}, allowed: 1 to {MAX_CLASS_WEIGHT}")
        if self.preemption == "swap" and not self.host_cache_memory:
            raise ValueError("preemption: got 'swap', allowed with host_cache_memory 0: auto, recompute")
        if self.tbt_target_ms is not None and self.token_budget == "fixed":
            raise ValueError(f"tbt_target_ms: got {self.tbt_target_ms!r}, allowed with token_budget fixed: None")
        if self.weight_dtype == "int8" and self.model_passes == "off":
            raise ValueError("weight_dtype: got 'int8', allowed with model_passes off: auto")
        if self.policy not in POLICIES:
            raise ValueError(f"policy: got {self.policy!r}, allowed: {', '.join(sorted(POLICIES))}")
        for field in fields(self):
            if get_origin(field.type) is Literal and getattr(self, field.name) not in get_args(field.type):
                allowed = ", ".join(get_args(field.type))
                raise ValueError(f"{field.name}: got {getattr(self, field.name)!r}, allowed: {allowed}")
        check_batch_within_budget(self.max_batch_size, self.max_num_batched_tokens)

    @property
    def token_budget_tokens(self) -> int:
        """`max_num_batched_tokens`, or a CPU's default if it is None; an engine on a GPU has set its own by then."""
        return self.max_num_batched_tokens or max(_CPU_TOKENS, self.max_batch_size or 0)

    @property
    def num_places(self) -> int:
        """`max_batch_size`, or a CPU's default if it is None; an engine on a GPU has set its own by then."""
        return self.max_batch_size or min(_CPU_REQUESTS, self.token_budget_tokens)

    def on(self, device_type: str) -> "EngineConfig":
        """Return a copy in which an unset token budget or batch size has its default for that device type."""
        on_gpu = device_type == "cuda"
        tokens = self.max_num_batched_tokens or max(_GPU_TOKENS if on_gpu else _CPU_TOKENS, self.max_batch_size or 0)
        requests = self.max_batch_size or min(_GPU_REQUESTS if on_gpu else _CPU_REQUESTS, tokens)
        return replace(self, max_num_batched_tokens=tokens, max_batch_size=requests)


def check_batch_within_budget(max_batch_size: int | None, max_num_batched_tokens: int | None) -> None:
    """Raise ValueError if an iteration could not hold one token of each request. None follows the other value."""
    if max_batch_size is not None and max_num_batched_tokens is not None and max_batch_size > max_num_batched_tokens:
        raise ValueError(
            f"max_batch_size: got {max_batch_size}, allowed: at most max_num_batched_tokens, which is "
            f"{max_num_batched_tokens} (each running request takes a token of it)"
        )
