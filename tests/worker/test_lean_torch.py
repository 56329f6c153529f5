"""What a worker's process does without, and that who needs it gets it."""

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
    """What a process says that has loaded nothing before."""
    command = [sys.executable, "-W", "ignore", "-c", _LOAD.format(lean=lean, more=more)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in told.splitlines()]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton to leave out")
@pytest.mark.parametrize(("lean", "loaded"), [("lean_torch('cpu')", False), ("", True)])
def test_nothing_is_loaded_that_no_worker_uses(lean: str, loaded: bool) -> None:
    """Without it transformers and torch would load all of it."""
    (told,) = told_by(lean)
    assert told == dict.fromkeys(told, loaded)


_COMPILED = """
import torch
function = torch.compile(lambda x: 2 * x, backend="eager")
print(json.dumps(function(torch.ones(2)).tolist()))
from torch._dynamo import config
print(json.dumps([torch._dynamo.config is config, torch._dynamo.is_compiling()]))
class Model(torch.nn.Module):
    def forward(self, x):
        return x.relu()
print(json.dumps(torch.export.export(Model(), (-torch.ones(2),)).module()(-torch.ones(2)).tolist()))
"""


@pytest.mark.parametrize("more", [_COMPILED, "import torch._dynamo.config\n" + _COMPILED], ids=["whole", "a part"])
def test_who_wants_to_compile_gets_the_compiler(more: str) -> None:
    _, *told = told_by("lean_torch('cpu')", more)
    assert told == [[2.0, 2.0], [True, False], [0.0, 0.0]]
