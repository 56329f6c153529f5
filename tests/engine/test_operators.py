"""An engine reports what it computes with."""

from collections.abc import Callable

import torch

from orcastream.engine import OrcaEngine
from orcastream.engine.native.library import instruction_set, why_unavailable
from orcastream.engine.operators import Operators


def test_an_engine_reports_its_backend_and_compiled_operators(make_engine: Callable[..., OrcaEngine]) -> None:
    told = make_engine(attention_backend="torch").operators.as_dict()
    assert (told["attention_backend"], told["dtype"]) == ("torch", "float32")
    why = why_unavailable()
    if told["device"] == "cpu":
        assert told["compiled"] == (f"none: {why}" if why else instruction_set())


def test_a_gpu_uses_no_compiled_operators() -> None:
    told = Operators.of(torch.device("cuda", 0), torch.bfloat16, "torch")
    assert told == Operators("cuda:0", "bfloat16", "torch", "none: they are for CPUs")
