"""Tiny random models of many architectures, on each available device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.attention import TorchBackend
from orcastream.engine.model.quiet import quiet
from orcastream.engine.model.runner import ModelRunner
from tests.engine.instruction_sets import computes_with, instruction_set
from tests.engine.triton_interpreter import look_up_once

__all__ = ["computes_with", "instruction_set"]

VOCAB_SIZE = 96

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 10},
    "gemma2": {"head_dim": 16, "sliding_window": 10, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16},
    "gpt2": {"n_inner": 48},
    "phi3": {"sliding_window": 10},
    "olmo2": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The machine is shared, and tiny models are slower on many threads."""
    torch.set_num_threads(1)


DEVICES = ["cpu", *([pytest.param("cuda", marks=pytest.mark.cuda)] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(scope="session")
def triton_device() -> torch.device:
    """Where the Triton kernels run: on a GPU, or in Triton's interpreter (tests/conftest.py)."""
    pytest.importorskip("triton")
    look_up_once()
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def build(family: str, **changes: Any) -> PreTrainedModel:
    """A random float32 model whose attention is far from uniform."""
    sizes = {**SIZES, **FAMILIES.get(family, {}), **changes}
    with quiet():
        config = CONFIG_MAPPING[family](**sizes)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    return model


@pytest.fixture(scope="session")
def make_model(device: torch.device) -> Callable[..., PreTrainedModel]:
    """Build a tiny model on the device; each call builds a new one, so that engines do not share it."""

    def make(family: str = "llama", **changes: Any) -> PreTrainedModel:
        return build(family, **changes).to(device)

    return make


@pytest.fixture(scope="session")
def make_engine(make_model: Callable[..., PreTrainedModel]) -> Callable[..., OrcaEngine]:
    """An engine around a tiny model, without a self-check; `num_blocks` sets the size of the pool.

    A step returns its own iteration's events on each device, unless the test sets `overlap`.
    """

    def make(
        model: PreTrainedModel | str = "llama", *, num_blocks: int = 64, block_size: int = 4, **settings: Any
    ) -> OrcaEngine:
        loaded = make_model(model) if isinstance(model, str) else model
        runner = ModelRunner(loaded, TorchBackend())
        memory = num_blocks * sum(runner.bytes_per_block(layer, block_size) for layer in range(len(runner.shapes)))
        settings = {"overlap": "off", **settings}
        return OrcaEngine(EngineConfig("tiny", block_size=block_size, kv_cache_memory=memory, **settings), loaded)

    return make


@pytest.fixture(scope="session")
def greedy_reference() -> Callable[..., list[int]]:
    """The output of transformers' own generate, with its eager attention and its own cache."""

    def generate(model: PreTrainedModel, prompt: tuple[int, ...], num_tokens: int, **options: Any) -> list[int]:
        ids = torch.tensor([prompt], device=model.device)
        with quiet(), torch.inference_mode():
            model.set_attn_implementation("eager")
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False, **options
            )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens

    return generate


@pytest.fixture(scope="session")
def saved_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a llama model, weights in bfloat16."""
    folder = tmp_path_factory.mktemp("llama")
    with quiet():
        build("llama", eos_token_id=5).to(torch.bfloat16).save_pretrained(folder)
    return folder
