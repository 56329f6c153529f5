"""The Prometheus binaries on this machine: on PATH, and in the directories that ORCASTREAM_TEST_PROMETHEUS names."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_DIRECTORIES = "ORCASTREAM_TEST_PROMETHEUS"
NONE_FOUND = (
    f"no prometheus with promtool on PATH (Debian: package prometheus), nor in a directory of {_DIRECTORIES} (colons "
    "between them)"
)


@dataclass(frozen=True)
class Prometheus:
    """One version of Prometheus."""

    server: str
    promtool: str
    version: str

    @property
    def takes_otlp(self) -> bool:
        """Whether it has an OTLP receiver (3.0 and later, with one flag)."""
        return int(self.version.partition(".")[0]) >= 3


def _found() -> list[Prometheus]:
    directories = [path for path in os.environ.get(_DIRECTORIES, "").split(":") if path]
    onpath = shutil.which("promtool")
    return [one for path in ([str(Path(onpath).parent)] if onpath else []) + directories if (one := _in(Path(path)))]


def _in(directory: Path) -> Prometheus | None:
    server, promtool = directory / "prometheus", directory / "promtool"
    if not (server.exists() and promtool.exists()):
        return None
    shown = subprocess.run([str(server), "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"version (\d+\.\d+\.\d+)", shown)
    return Prometheus(str(server), str(promtool), version[1]) if version else None


PROMETHEIS = _found()
"""All of them, the one on PATH first."""
