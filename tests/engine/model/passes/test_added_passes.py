"""Passes of other packages run if they compute the same; a faulty one costs its model nothing but the pass."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from orcastream import demo
from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.attention.base import PLAIN_DTYPES
from orcastream.engine.model import prepare
from orcastream.engine.model.load import load_model
from orcastream.engine.model.passes.base import PASSES, Pass, random_inputs, register, replace, same
from orcastream.schemas.sampling import SamplingParams
from tests.engine.needs_operators import needs_operators

pytestmark = needs_operators


class Times(nn.Module):
    """A module whose output is multiplied."""

    def __init__(self, inner: nn.Module, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = inner, factor
        self.weight = inner.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * self.inner(x)


class Replacing(Pass):
    """Multiplies all embeddings, which a compiled decoder looks up as they are."""

    factor = 1.0

    def apply(self, model: PreTrainedModel) -> int:
        model.set_input_embeddings(Times(model.get_input_embeddings(), self.factor))
        return 1


class Doubling(Replacing):
    """Computes something else."""

    factor = 2.0


class Slight(Replacing):
    """Computes something else, which the rounding of 16 bits hides."""

    factor = 1.01


class Raising(Pass):
    """Fails after a part of its work."""

    def apply(self, model: PreTrainedModel) -> int:
        replace(model, "model.norm", Times(model.get_submodule("model.norm"), 1.0))
        raise OSError("no licence")


class Unbuilt(Replacing):
    """Cannot be made."""

    def __init__(self) -> None:
        raise OSError("no kernels")


class Unfinished(Pass):
    """Has no `apply`."""


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Removes what a test registers."""
    before = dict(PASSES)
    yield
    PASSES.clear()
    PASSES.update(before)


def load(**settings: Any) -> OrcaEngine:
    return OrcaEngine.load(EngineConfig(str(demo.MODEL_DIR), **{"dtype": "float32", "device": "cpu"} | settings))


def answers(engine: OrcaEngine) -> list[tuple[int, ...]]:
    """Greedy answers of the demo model."""
    sampling = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    return [tuple(each.output_ids) for each in engine.generate([[1, 17, 42], list(range(5, 60))], sampling)]


def test_an_added_pass_runs() -> None:
    wanted = answers(load())
    register("same")(Replacing)
    engine = load()
    assert isinstance(engine.model.get_input_embeddings(), Times)
    assert answers(engine) == wanted


@pytest.mark.parametrize("settings", [{}, {"weight_dtype": "int8"}], ids=["auto", "int8"])
def test_a_pass_that_computes_something_else_is_left_out(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The engine's own passes still run."""
    plain = load(**settings)
    register("doubling")(Doubling)
    engine = load(**settings)
    assert "the passes doubling do not fit this model" in caplog.text
    assert set(map(type, engine.model.modules())) == set(map(type, plain.model.modules()))
    assert answers(engine) == answers(plain)


def test_a_difference_that_16_bits_hide_is_found(caplog: pytest.LogCaptureFixture) -> None:
    register("slight")(Slight)
    engine = load(dtype="bfloat16")
    assert "the passes slight do not fit this model" in caplog.text
    assert not any(isinstance(module, Times) for module in engine.model.modules())


@pytest.mark.parametrize(("kind", "why"), [(Raising, "no licence"), (Unbuilt, "no kernels")])
def test_a_pass_that_raises_is_left_out(kind: type[Pass], why: str, caplog: pytest.LogCaptureFixture) -> None:
    wanted = answers(load())
    register("broken")(kind)
    assert answers(load()) == wanted
    lines = [line for line in caplog.messages if "model pass broken left out" in line]
    assert lines
    assert all(why in line for line in lines)


@pytest.mark.parametrize("dtype", PLAIN_DTYPES, ids=str)
@torch.inference_mode()
def test_replacements_are_compared_in_every_dtype_of_a_model(dtype: torch.dtype) -> None:
    norm = nn.LayerNorm(64, dtype=dtype)
    inputs = list(random_inputs(64, dtype, (1, 5)))
    assert same("norm", norm, norm, inputs)
    assert not same("norm", norm, Times(norm, 1.1), inputs)


def test_an_unfinished_pass_is_not_registered() -> None:
    with pytest.raises(TypeError, match="Unfinished lacks apply"):
        register("unfinished")(Unfinished)


def test_a_pass_must_not_take_the_name_of_another() -> None:
    with pytest.raises(ValueError, match="'fuse_norm' is the name of orcastream"):
        register("fuse_norm")(Replacing)


def test_the_rejected_model_is_freed_before_the_next_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    register("doubling")(Doubling)
    loaded: list[weakref.ref[PreTrainedModel]] = []

    def watched(*arguments: Any) -> PreTrainedModel:
        assert not any(model() is not None for model in loaded)
        model = load_model(*arguments)
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(prepare, "load_model", watched)
    load()
    assert len(loaded) == 2
