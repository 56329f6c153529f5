"""An installed wheel: everything runs from any directory, and a gateway needs no torch."""

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from orcastream.demo.prompts import SHOWCASE
from tests.cli.processes import Terminal
from tests.packaging.conftest import ROOT
from tests.packaging.environment import closure, create, requirements_of

pytestmark = pytest.mark.server

ROOMS = ("schemas", "engine", "text", "broker", "worker", "gateway", "telemetry", "client", "cli", "demo", "bench")
DATA = (".lua", ".yaml", ".json", ".safetensors", ".jinja")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory unrelated to the sources, and an environment that does not refer to them."""
    for name in list(os.environ):
        if name.startswith(("ORCASTREAM_", "PYTHONPATH", "VIRTUAL_ENV")):
            monkeypatch.delenv(name)
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    return directory


def test_the_wheel_contains_every_package_and_its_data(wheel: Path) -> None:
    carried = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"orcastream/{path.relative_to(ROOT)}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.suffix in (".py", *DATA) and "__pycache__" not in path.parts
    }
    assert wanted <= carried
    assert {name.partition("/")[0] for name in carried} == {"orcastream", "orcastream-0.1.0.dist-info"}


def test_a_gateway_runs_without_torch(wheel: Path, elsewhere: Path, tmp_path: Path) -> None:
    needed = closure(requirements_of(wheel), {"gateway"})
    assert "torch" not in needed
    binaries = create(tmp_path / "environment", wheel, needed)
    program = (
        "import importlib.util, sys, orcastream.gateway.main, orcastream.cli.gateway\n"
        "sys.exit(importlib.util.find_spec('torch') is not None)"
    )
    subprocess.run([binaries / "python", "-W", "error", "-c", program], check=True, cwd=elsewhere)
    shown = subprocess.run([binaries / "orcastream", "up"], check=False, cwd=elsewhere, capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (
        2,
        "orcastream up: the package torch is not installed: pip install 'orcastream[worker]'\n",
    )


def test_no_extra_is_enough_for_help_and_version(wheel: Path, elsewhere: Path, tmp_path: Path) -> None:
    binaries = create(tmp_path / "environment", wheel, closure(requirements_of(wheel), set()))
    for command in ("--help", "--version"):
        subprocess.run([binaries / "orcastream", command], check=True, cwd=elsewhere)
    shown = subprocess.run(
        [binaries / "orcastream", "chat"], check=False, cwd=elsewhere, capture_output=True, text=True
    )
    assert shown.returncode == 2
    assert "pip install 'orcastream[chat]'" in shown.stderr


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """The `bin` folder of an environment with the wheel and all of its run-time extras."""
    extras = {"gateway", "worker", "embedded"}
    return create(tmp_path / "environment", wheel, closure(requirements_of(wheel), extras))


def test_an_installed_wheel_serves_from_any_directory(installed: Path, elsewhere: Path) -> None:
    question, expected = SHOWCASE[0]
    flags = ("--workers", "1", "--port", "0", "--data-dir", "data")
    up = Terminal(str(installed / "orcastream"), "up", *flags, program=(), cwd=elsewhere)
    try:
        url = up.wait_for(r"ready: (\S+)")[1]
        body = {"model": "orca-demo", "messages": [{"role": "user", "content": question}], "temperature": 0}
        answer = httpx.post(f"{url}/chat/completions", json=body, timeout=60)
        assert answer.json()["choices"][0]["message"]["content"] == expected
        up.signal(signal.SIGINT)
        assert up.wait() == 0
    finally:
        up.close()


def test_the_client_needs_only_its_own_extra(wheel: Path, elsewhere: Path, tmp_path: Path) -> None:
    needed = closure(requirements_of(wheel), {"client"})
    assert not {"torch", "transformers", "fastapi"} & set(needed)
    binaries = create(tmp_path / "environment", wheel, needed)
    program = (
        "from orcastream.client import Client\n"
        "[Client(url, 'm').close() for url in ('http://127.0.0.1:1', 'redis://127.0.0.1:1')]"
    )
    subprocess.run([binaries / "python", "-W", "error", "-c", program], check=True, cwd=elsewhere)


def test_a_users_program_is_type_checked_with_the_clients_types(wheel: Path, elsewhere: Path, tmp_path: Path) -> None:
    """Even if a type of the client comes from another package, as that of `usage` does."""
    binaries = create(tmp_path / "environment", wheel, closure(requirements_of(wheel), {"client"}))
    (elsewhere / "program.py").write_text(
        "from orcastream.client import Client\n"
        "from orcastream.text.tokenizer import Tokenizer\n"
        "def ask(client: Client, tokenizer: Tokenizer) -> None:\n"
        "    reveal_type(client.generate('x').result().usage.completion_tokens)\n"
        "    reveal_type(tokenizer)\n"
    )
    flags = ("--strict", "--python-executable", str(binaries / "python"), "--cache-dir", str(tmp_path / "cache"))
    command = (sys.executable, "-m", "mypy", *flags, "program.py")
    shown = subprocess.run(command, check=False, cwd=elsewhere, capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, ""), shown.stdout
    assert 'program.py:4: note: Revealed type is "int"' in shown.stdout.replace("builtins.", "")
    assert 'program.py:5: note: Revealed type is "orcastream.text.tokenizer.Tokenizer"' in shown.stdout
