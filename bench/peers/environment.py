"""A virtual environment of one system, created on request."""

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
    """Packages to install: `requirements` with versions, then `alone` without their dependencies; `without` is
    uninstalled again. `variables` are set for pip. The version of `package` represents all."""

    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Environment:
    """The folder of a virtual environment, and its pinned packages."""

    path: Path
    pins: Pins

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    def lack(self) -> str | None:
        """Return why it is unusable, in a few words; None if it is usable."""
        try:
            installed = json.loads((self.path / _MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return "not installed"
        if installed != self._wanted():
            return "installed with other versions"
        return None

    def set_up(self) -> None:
        """Create it and install missing packages. Raises UserError if pip fails, after pip's own messages."""
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
        """Record what is installed."""
        (self.path / _MARKER).write_text(json.dumps(self._wanted()) + "\n", encoding="utf-8")

    def _wanted(self) -> dict[str, object]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.pins).items()}

    def _pip(self, *arguments: str) -> None:
        command = [str(self.python), "-m", "pip", *arguments]
        done = subprocess.run(command, env={**os.environ, **self.pins.variables}, stdout=sys.stderr, check=False)
        if done.returncode:
            raise UserError(f"--set-up: {self.path.name}: pip {' '.join(arguments)} failed with {done.returncode}")
