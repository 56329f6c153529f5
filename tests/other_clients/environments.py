"""Third-party clients on this machine: next to this Python, on PATH, and in the `bin` folders of the environments that
ORCASTREAM_TEST_CLIENTS names (separated by colons): they need other versions of shared packages.
"""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

_FOLDERS = "ORCASTREAM_TEST_CLIENTS"


def _folders() -> list[str]:
    return [str(Path(sys.executable).parent), *filter(None, os.environ.get(_FOLDERS, "").split(":"))]


@cache
def python_with(module: str) -> str | None:
    """Return a Python that can import a module; None means there is none."""
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    for folder in _folders():
        python = str(Path(folder, "python"))
        if Path(python).exists() and subprocess.run([python, "-c", find], check=False).returncode == 0:
            return python
    return None


@cache
def command(name: str) -> str | None:
    """Return the path of a command; None means there is none."""
    return next((found for folder in _folders() if (found := shutil.which(name, path=folder))), shutil.which(name))
