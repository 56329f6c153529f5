"""Models and limits that gateway and worker refuse before they serve: one line, the same for both, without a prompt."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orcastream import demo
from tests.cli.processes import ROOT


def complaint(command: str, *arguments: str) -> str:
    """Return the command's last output. Its stdin stays open: a command that prompts there would not end."""
    started = [
        sys.executable,
        "-P",
        "-m",
        "orcastream.cli.main",
        command,
        "--redis-url",
        "redis://127.0.0.1:1/0",
        *arguments,
    ]
    chatty = {"CI": "true"}  # with this set, transformers propagates its log lines
    environment = {**os.environ, **chatty, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        started, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = list(process.stderr)
        assert process.wait() == 2
    assert len(lines) == 1, lines
    return lines[0].removeprefix(f"orcastream {command}: ").strip()


@pytest.mark.parametrize("command", ["gateway", "worker"])
def test_a_context_beyond_the_model_s_own(command: str) -> None:
    own = json.loads((demo.MODEL_DIR / "config.json").read_text())["max_position_embeddings"]
    said = complaint(command, "--model", str(demo.MODEL_DIR), "--max-model-len", "99999")
    assert said == f"max_model_len: got 99999, allowed: at most {own}, the model's own limit"


@pytest.mark.parametrize("command", ["gateway", "worker"])
def test_code_that_comes_with_a_model(command: str, tmp_path: Path) -> None:
    model = Path(shutil.copytree(demo.MODEL_DIR, tmp_path / "own"))
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    (model / "config.json").write_text(json.dumps(config))
    assert "wants to run code of its own (auto_map), which is never done" in complaint(command, "--model", str(model))


def test_a_cache_beyond_the_machine_s_memory() -> None:
    said = complaint("worker", "--host-cache-memory", str(1 << 60), "--log-level", "error")
    assert said.startswith(f"host_cache_memory: got {1 << 60} bytes, allowed: at most ")
    assert said.endswith(", what this machine has to spare")
