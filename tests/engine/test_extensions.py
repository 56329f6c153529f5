"""The instructions in CONTRIBUTING.md for adding a policy, a backend and a pass, run as an outside module."""

import importlib
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from orcastream import demo
from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.attention.base import BACKENDS
from orcastream.engine.model.passes import passes_unavailable
from orcastream.engine.model.passes.base import PASSES
from orcastream.engine.schedule.policies import POLICIES
from tests.engine.running import MakeEngine, request, run, tokens

GUIDE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports the example below a heading; its registrations are removed afterwards."""
    registries: tuple[dict[str, Any], ...] = (POLICIES, BACKENDS, PASSES)
    before = [dict(registry) for registry in registries]
    monkeypatch.syspath_prepend(tmp_path)

    def load(heading: str) -> Any:
        section = GUIDE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
        (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        name = re.sub(r"\W", "_", heading.lower())
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code), encoding="utf-8")
        sys.modules.pop(name, None)  # another test may have imported it, and its registrations were removed
        return importlib.import_module(name)

    yield load
    for registry, content in zip(registries, before, strict=True):
        registry.clear()
        registry.update(content)


def test_a_policy_from_an_outside_module(outside: Any, make_engine: MakeEngine) -> None:
    policy = outside("How to add a scheduling policy").FewestTokens
    assert POLICIES["fewest"] is policy
    engine = make_engine(policy="fewest", max_batch_size=1)
    long, short = request("long", max_tokens=6), request("short", max_tokens=2)
    events = run(engine, long, short)
    assert (len(events["long"]), len(events["short"])) == (6, 2)
    assert (short.timeline.finished_s or 0) < (long.timeline.scheduled_s or 0)


def test_a_backend_from_an_outside_module(outside: Any, make_engine: MakeEngine) -> None:
    backend = outside("How to add an attention backend").CountingBackend
    wanted = run(make_engine(), request("same"))["same"]
    engine = make_engine(attention_backend="counting")
    assert isinstance(engine._runner.backend, backend)
    assert tokens(run(engine, request("same"))["same"]) == tokens(wanted)
    assert engine._runner.backend.calls > 0


def test_auto_selects_the_best_and_not_the_latest(outside: Any, make_engine: MakeEngine) -> None:
    backend = outside("How to add an attention backend").CountingBackend
    assert not isinstance(make_engine()._runner.backend, backend)


@pytest.mark.skipif(passes_unavailable(torch.device("cpu")) is not None, reason="no compiled operators")
def test_a_pass_from_an_outside_module(outside: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "orcastream.engine")
    module = outside("How to add a model pass")
    engine = OrcaEngine.load(EngineConfig(str(demo.MODEL_DIR), dtype="float32", device="cpu"))
    norms = [each for each in engine.model.modules() if isinstance(each, module.TorchNorm)]
    assert f"torch_norm {len(norms)}" in caplog.text
    assert len(norms) == 4 * engine.model.config.num_hidden_layers + 1
