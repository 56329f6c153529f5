"""The speed of an iteration, in units of a matrix product on the same machine at the same time."""

from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from orcastream.engine import EngineConfig, OrcaEngine, Request
from orcastream.engine.model.passes import apply_passes
from orcastream.engine.native.library import why_unavailable
from orcastream.schemas.sampling import SamplingParams
from tests.engine.speed_ratio import check_ratio

_RUNNING = 64
_MODEL = LlamaConfig(
    vocab_size=2048,
    hidden_size=512,
    intermediate_size=2048,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=512,
    attn_implementation="eager",
)
"""Large enough that most of an iteration is arithmetic of its linear layers, which depends on the machine as the
product does, with as many weights read from the same place."""


def _engine(*, native: bool) -> OrcaEngine:
    """Return an engine whose requests all decode."""
    model = LlamaForCausalLM(_MODEL).eval()
    if native:
        # A model without an engine skips merging, with a log line.
        apply_passes(model)
    backend = "native" if native else "torch"
    config = EngineConfig(
        "none",
        device="cpu",
        attention_backend=backend,
        kv_cache_memory=1 << 27,
        max_batch_size=_RUNNING,
        prefix_cache=False,
    )
    engine = OrcaEngine(config, model)
    params = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)
    for index in range(_RUNNING):
        engine.submit(Request(str(index), tuple(range(index, index + 16)), params))
    while engine.last_iteration is None or engine.last_iteration.decode_tokens < _RUNNING:
        engine.step()
    return engine


def _product() -> Callable[[], object]:
    """Return the arithmetic of the model's linear layers for one iteration as one float32 product."""
    kv_size = _MODEL.hidden_size * _MODEL.num_key_value_heads // _MODEL.num_attention_heads
    layer = 2 * _MODEL.hidden_size + 2 * kv_size + 3 * _MODEL.intermediate_size
    columns = _MODEL.num_hidden_layers * layer + _MODEL.vocab_size
    weight, rows = torch.randn(_MODEL.hidden_size, columns), torch.randn(_RUNNING, _MODEL.hidden_size)
    into = torch.empty(_RUNNING, columns)
    return lambda: torch.mm(rows, weight, out=into)


@pytest.mark.parametrize(("native", "recorded"), [(False, 1.7), (True, 1.1)], ids=["torch", "compiled"])
def test_an_iteration_in_units_of_a_product(native: bool, recorded: float) -> None:
    """All requests decode."""
    if native and (reason := why_unavailable()) is not None:
        pytest.skip(reason)
    engine = _engine(native=native)
    check_ratio(engine.step, _product(), recorded)
