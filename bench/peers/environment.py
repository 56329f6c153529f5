"""A virtual environment of one system, made when asked for."""

import json
import os
import subprocess
import sys
import venv
from dataclasses import asdict, dataclass, field
from pathlib import Path

from orcastream.cli.errors import UserError

_MARKER = "orcastream.json"


@dataclass(frozen=True)
class Pins:
    """What is installed: `requirements` with their versions, then `alone` without what they require; `without` is
    taken out again. `variables` are in pip's environment. `package` is whose version stands for all."""

    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Environment:
    """The folder of a virtual environment, and what belongs in it."""

    path: Path
    pins: Pins

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    def lack(self) -> str | None:
        """Why it cannot be used, in a few words; None where it can."""
        try:
            installed = json.loads((self.path / _MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return "not installed"
        if installed != self._wanted():
            return "installed with other versions"
        return None

    def set_up(self) -> None:
        """Make it and install the packages; what is there is kept. UserError where pip fails, its words above it."""
        (self.path / _MARKER).unlink(missing_ok=True)
        if not self.python.exists():
            venv.create(self.path, with_pip=True)
        self._pip("install", *self.pins.options, *self.pins.requirements)
        if self.pins.alone:
            self._pip("install", "--no-deps", *self.pins.alone)
        if self.pins.without:
            self._pip("uninstall", "--yes", *self.pins.without)
        self.mark()

    def mark(self) -> None:
        """Write down what is installed."""
        (self.path / _MARKER).write_text(json.dumps(self._wanted()) + "\n", encoding="utf-8")

    def _wanted(self) -> dict[str, object]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.pins).items()}

    def _pip(self, *arguments: str) -> None:
        command = [str(self.python), "-m", "pip", *arguments]
        done = subprocess.run(command, env={**os.environ, **self.pins.variables}, stdout=sys.stderr, check=False)
        if done.returncode:
            raise UserError(f"--set-up: {self.path.name}: pip {' '.join(arguments)} failed with {done.returncode}")
