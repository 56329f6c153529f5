"""The model runner: one forward pass per iteration over the flat batch, no padding, and the head for few rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine import OrcaEngine, Request, UnsupportedModel
from orcastream.engine.attention import TorchBackend
from orcastream.engine.kv.layout import LayerShape
from orcastream.engine.model.runner import ModelRunner
from orcastream.schemas.sampling import SamplingParams

MakeModel = Callable[..., PreTrainedModel]


def test_the_probe_finds_the_layers(make_model: MakeModel) -> None:
    runner = ModelRunner(make_model(), TorchBackend())
    assert runner.shapes == [LayerShape(4, 2, 8, 8)] * 2
    assert runner.bytes_per_block(0, 16) == 16 * 2 * 16 * 4


def test_an_iteration_is_one_forward_of_the_selected_tokens(
    make_model: MakeModel, make_engine: Callable[..., OrcaEngine]
) -> None:
    model = make_model()
    seen: list[tuple[int, int]] = []
    heads: list[int] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    model.get_output_embeddings().register_forward_hook(lambda module, args, output: heads.append(args[0].shape[1]))
    engine = make_engine(model, max_num_batched_tokens=16)
    seen.clear()
    heads.clear()
    for name, length in (("a", 5), ("b", 30), ("c", 2)):
        engine.submit(Request(name, tuple(range(length)), SamplingParams(temperature=0, max_tokens=3)))
    for _ in range(3):
        engine.step()
    # a, two blocks of b and c; one of a and c each, and three blocks of b; again, and the last 10 of b.
    assert seen == [(1, 15), (1, 14), (1, 12)]
    assert heads == [2, 2, 3]


def test_a_chunk_that_does_not_finish_needs_no_row(
    make_model: MakeModel, make_engine: Callable[..., OrcaEngine]
) -> None:
    model = make_model()
    engine = make_engine(model, max_num_batched_tokens=8)
    heads: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda module, args, output: heads.append(args[0].shape[1]))
    engine.submit(Request("a", tuple(range(20)), SamplingParams(temperature=0, max_tokens=2)))
    while engine.has_work:
        engine.step()
    assert heads == [0, 0, 1, 1]


def test_a_layer_that_attends_twice_is_refused(make_model: MakeModel) -> None:
    model = make_model()
    layers: Any = model.get_submodule("model.layers")
    layers[1] = layers[0]
    with pytest.raises(UnsupportedModel, match="more than once"):
        ModelRunner(model, TorchBackend())


def test_a_model_can_be_wrapped_again(make_model: MakeModel) -> None:
    model = make_model()
    first, second = ModelRunner(model, TorchBackend()), ModelRunner(model, TorchBackend())
    assert first.shapes == second.shapes
    assert first.device == torch.device(model.device)
