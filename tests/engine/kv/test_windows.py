"""The blocks that layers with a window hold while a request runs."""

from typing import Any

import pytest

from tests.engine.running import MakeEngine, MakeModel, request

WINDOW, CHUNK, BLOCK_SIZE = 10, 8, 4
MODELS: dict[str, dict[str, Any]] = {
    "mistral": {},
    "gemma3_text": {"head_dim": 16, "num_hidden_layers": 6},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.mark.parametrize("family", list(MODELS))
def test_at_most_the_window_and_one_chunk_through_long_prefills_and_decodes(
    family: str, make_engine: MakeEngine, make_model: MakeModel
) -> None:
    model = make_model(family, sliding_window=WINDOW, **MODELS[family])
    engine = make_engine(model, num_blocks=96, block_size=BLOCK_SIZE, max_num_batched_tokens=CHUNK, prefix_cache=False)
    requests = [request("a", tuple(range(70)), max_tokens=40), request("b", (1, 2, 3), max_tokens=60)]
    for each in requests:
        engine.submit(each)
    most = -(-(WINDOW + CHUNK) // BLOCK_SIZE)
    longest = 0
    while engine.has_work:
        engine.step()
        engine.check_integrity()
        for group in engine.cache.groups:
            held = [len(each.kv.blocks[group.index]) - each.kv.first[group.index] for each in requests if each.kv]
            if group.window is not None:
                assert all(blocks <= most for blocks in held)
                assert group.pool.num_used == sum(held)
                longest = max(longest, *held, 0)
    assert longest == most


def test_free_blocks_of_a_window_let_more_run_at_once(make_engine: MakeEngine, make_model: MakeModel) -> None:
    """Eight requests of 100 tokens run without preemption in a quarter of the memory that they would need at once."""
    engine = make_engine(make_model("mistral", sliding_window=WINDOW), num_blocks=50, max_num_batched_tokens=16)
    for index in range(8):
        engine.submit(request(str(index), tuple(range(index, index + 60)), max_tokens=40))
    most = 0
    while engine.has_work:
        engine.step()
        engine.check_integrity()
        most = max(most, engine.num_running)
    assert most == 8
    assert engine.stats().preemptions == 0
