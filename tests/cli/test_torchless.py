"""Commands that need no torch do not load it, although transformers would and the worker next to them has it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orcastream.demo import MODEL_DIR
from tests.cli.processes import ROOT, Terminal
from tests.ports import free_port


@pytest.fixture
def gateways(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    """The gateway serves even though its Redis does not exist."""
    settings = ("--model", str(MODEL_DIR), "--redis-url", f"redis://127.0.0.1:{free_port()}", "--port")
    command = ("-m", "orcastream.cli.main", "gateway", *settings, str(free_port()))
    terminal = Terminal(*command, "--workers", str(request.param))
    yield terminal
    terminal.close()


@pytest.mark.server
@pytest.mark.parametrize("gateways", [1, 2], indirect=True)
def test_a_gateway(gateways: Terminal) -> None:
    gateways.wait_for("serving gateway")
    if children := re.findall(r"gateway-\d: pid (\d+)", gateways.text):
        gateways.wait_for("serving gateway")
    for pid in (*children, gateways.process.pid):
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


def test_tokenize() -> None:
    command = [sys.executable, "-X", "importtime", "-P", "-m", "orcastream.cli.main", "tokenize", "Spell orca"]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert "transformers" in loaded
    assert not {"torch", "torch._C"} & loaded


def test_looking_for_mistyped_variables() -> None:
    """Whatever the variables of other commands: the settings alone determine the known ones."""
    program = (
        "import os, sys\n"
        "from orcastream.cli.settings import ChatSettings\n"
        "from orcastream.cli.variables import mistyped\n"
        "os.environ |= {'ORCASTREAM_MAX_BATCH_SIZE': '1', 'ORCASTREAM_LEASE_SM': '1'}\n"
        "print(*mistyped(ChatSettings), [name for name in ('torch', 'transformers', 'fastapi') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert shown.stdout == "('ORCASTREAM_LEASE_SM', 'ORCASTREAM_LEASE_MS') []\n"
