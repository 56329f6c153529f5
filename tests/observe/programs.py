"""The telemetry programs of the Compose deployment: on PATH, and in directories that a variable names."""

import os
import shutil
from dataclasses import dataclass
from typing import Final

_DIRECTORIES: Final = "ORCASTREAM_TEST_STORES"
NOT_FOUND: Final = (
    f"no otelcol-contrib, loki and tempo on PATH, nor in a directory of {_DIRECTORIES} (colons between them), or no "
    "prometheus from 3.0 on"
)


@dataclass(frozen=True)
class StorePrograms:
    """The paths of the programs."""

    collector: str
    loki: str
    tempo: str


def _found() -> StorePrograms | None:
    path = os.pathsep.join([os.environ.get(_DIRECTORIES, ""), os.environ.get("PATH", "")])
    collector, loki, tempo = (shutil.which(name, path=path) for name in ("otelcol-contrib", "loki", "tempo"))
    return StorePrograms(collector, loki, tempo) if collector and loki and tempo else None


STORE_PROGRAMS: Final = _found()
