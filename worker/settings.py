"""Settings of the worker process."""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from orcastream.broker.settings import BrokerSettings
from orcastream.engine.config import check_batch_within_budget
from orcastream.engine.schedule.policies import POLICIES
from orcastream.schemas.keys import CLASS_WEIGHT, MAX_CLASS_WEIGHT
from orcastream.telemetry.settings import LogSettings

if TYPE_CHECKING:
    PolicyName = str
else:  # the existing ones, so that help and errors list them
    PolicyName = Literal[tuple(sorted(POLICIES))]


class WorkerSettings(BrokerSettings, LogSettings):
    """What one worker runs and how; every field is an ORCASTREAM_ variable, a line of .env, or a flag."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the model runs.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Number format of weights and cache; auto: the checkpoint's on a GPU, and on a CPU with bfloat16 "
        "instructions if the checkpoint's is bfloat16; else float32.",
    )
    weight_dtype: Literal["auto", "int8"] = Field(
        "auto", description="int8: 8-bit linear layers, on a CPU with the compiled operators; auto: as `dtype`."
    )
    torch_threads: int = Field(0, ge=0, le=1024, description="CPU threads of torch; 0: all cores. [threads]")
    bind_threads: bool = Field(
        True,
        description="Bind CPU threads to cores, each to its own, if they take all that the worker may use.",
    )
    max_batch_size: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Most requests in one iteration, at most `max_num_batched_tokens`; "
        "none: 32 on a CPU, 256 on a GPU. [requests]",
    )
    max_num_batched_tokens: int | None = Field(
        None,
        ge=1,
        le=1_048_576,
        description="Token budget of one iteration, prefill and decode together; none: 256 on a CPU, 2048 on a GPU, "
        "and at least `max_batch_size`. [tokens]",
    )
    max_model_len: int | None = Field(
        None, ge=2, le=10_000_000, description="Lowers the context that the model's configuration states. [tokens]"
    )
    kv_cache_memory: int | None = Field(
        None, ge=1024, description="Size of the KV cache; none: measured on a GPU, a default on a CPU. [bytes]"
    )
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"] = Field(
        "auto", description="Number format of the KV cache; auto: the model's own."
    )
    cuda_graphs: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Replay decode-only iterations from CUDA graphs; auto: on a GPU, if the model allows it.",
    )
    attention_backend: str = Field(
        "auto",
        min_length=1,
        description="What computes attention: native, triton, torch, varlen, flashinfer, or an extension's; auto: what "
        "fits the device.",
    )
    prefix_cache: bool = Field(True, description="Cache computed prefixes; none is computed twice for a tenant.")
    host_cache_memory: int = Field(
        0, ge=0, description="Host memory for swapped-out requests and evicted prefixes. [bytes]"
    )
    policy: PolicyName = Field(
        "fcfs",
        description="Which request runs next: by arrival, class, slack to the targets, length, shares of tenants; "
        "static: request-level batches, for comparison.",
    )
    allow_policy_switch: bool = Field(
        False,
        description="Let the console switch the policy, for demonstrations; `orcastream up`: true.",
    )
    token_budget: Literal["fixed", "adaptive"] = Field(
        "fixed", description="adaptive: prefill chunks shrink so that the time between tokens stays under its target."
    )
    tbt_target_ms: float | None = Field(
        None, gt=0, le=3_600_000, description="Target time between tokens for requests that set none. [ms]"
    )
    preemption: Literal["auto", "recompute", "swap"] = Field(
        "auto", description="What happens to a preempted request; auto: swapped out where measured to be cheaper."
    )
    admission: Literal["paged", "reserve"] = Field(
        "paged", description="paged: blocks on demand, preemption; reserve: Orca's Algorithm 1, max_tokens reserved."
    )
    adapters: str = Field(
        "",
        description="LoRA adapters served with the model: `name=folder`, several separated by commas, or one folder "
        "with a folder per adapter; empty: none. Workers of a model must agree.",
    )
    max_adapters: int = Field(4, ge=1, le=1024, description="Most adapters in memory at once. [adapters]")
    max_adapter_rank: int = Field(64, ge=1, le=4096, description="Highest rank that an adapter may have.")
    max_claims: int = Field(
        4, ge=1, le=4096, description="Most requests claimed per iteration, so that work spreads. [requests]"
    )
    max_waiting: int | None = Field(
        None,
        ge=0,
        le=100_000,
        description="Requests claimed beyond the free places, for the policy to choose among; none: 0, with `fair` "
        "`max_queue_depth`, with `static` `max_batch_size`. [requests]",
    )
    class_weight: float = Field(
        CLASS_WEIGHT,
        ge=1,
        le=MAX_CLASS_WEIGHT,
        description="A waiting request gains precedence this many times as fast as one of the next lower class; "
        "1: classes do not matter.",
    )
    max_unpublished: int = Field(
        4096, ge=1, le=1_000_000, description="The engine pauses while this many tokens wait for Redis. [tokens]"
    )
    drain_grace_s: float = Field(
        20.0, ge=0, le=3600, description="After SIGTERM, time for running requests before they are handed over. [s]"
    )
    stall_timeout_s: float = Field(
        60.0, ge=1, le=3600, description="A worker whose engine or event loop stands still for this long exits. [s]"
    )
    admin_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of /metrics and /health; 0: any free port; none: no admin port; `up` counts up from it.",
    )
    admin_host: str = Field("127.0.0.1", description="Address that the admin port listens on; 0.0.0.0 for all.")
    iteration_trace_ratio: float = Field(
        0.0, ge=0, le=1, description="Share of the engine's iterations that get their own trace."
    )

    def most_waiting(self, policy: str, num_places: int) -> int:
        """Return how many requests to claim beyond `num_places` slots: `max_waiting`, or what `policy` needs."""
        if self.max_waiting is not None:
            return self.max_waiting
        if POLICIES[policy].sees_all:
            return self.max_queue_depth
        return num_places if POLICIES[policy].forms_batches else 0

    @model_validator(mode="after")
    def _batch_within_budget(self) -> Self:
        check_batch_within_budget(self.max_batch_size, self.max_num_batched_tokens)
        return self
