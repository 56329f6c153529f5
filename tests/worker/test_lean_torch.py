"""Modules that a worker's process does not load, and that load when code needs them."""

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

_LOAD = """
import json, sys
from orcastream import demo
from orcastream.worker.lean_torch import lean_torch
{lean}
from orcastream.engine import EngineConfig, OrcaEngine
engine = OrcaEngine.load(EngineConfig(str(demo.MODEL_DIR), device="cpu", kv_cache_memory=1 << 22))
print(json.dumps({{
    "triton": "libtriton" in open("/proc/self/maps").read(),
    "compiler": "torch._dynamo.symbolic_convert" in sys.modules,
    "tensors of several processes": "torch.distributed.tensor" in sys.modules,
}}))
{more}
"""


def told_by(lean: str, more: str = "") -> list[Any]:
    """The output of a process that has loaded nothing before."""
    command = [sys.executable, "-W", "ignore", "-c", _LOAD.format(lean=lean, more=more)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in told.splitlines()]


_COMPILE = """
import torch._dynamo.config
function = torch.compile(lambda x: 2 * x, backend="eager")
print(json.dumps(function(torch.ones(2)).tolist()))
print(json.dumps([torch._dynamo.config is sys.modules["torch._dynamo.config"], torch._dynamo.is_compiling()]))
class Model(torch.nn.Module):
    def forward(self, x):
        return x.relu()
print(json.dumps(torch.export.export(Model(), (-torch.ones(2),)).module()(-torch.ones(2)).tolist()))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs an installed Triton")
def test_without_the_exclusion_everything_is_loaded() -> None:
    (told,) = told_by("")
    assert told == dict.fromkeys(told, True)


def test_modules_that_no_worker_uses_load_only_on_use() -> None:
    told, *compiled = told_by("lean_torch('cpu')", _COMPILE)
    assert told == dict.fromkeys(told, False)
    assert compiled == [[2.0, 2.0], [True, False], [0.0, 0.0]]
