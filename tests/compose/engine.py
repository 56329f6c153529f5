"""A container engine: its command line, and the images that it can obtain."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

PULL_TIMEOUT_S = 600
BUILD_TIMEOUT_S = 3600


class EngineError(Exception):
    """A command of the engine failed; the message contains its output."""


def docker(*arguments: str, environment: Mapping[str, str] | None = None, timeout_s: float = 300) -> str:
    """Run `docker` in the repository and return its output. Raises EngineError."""
    try:
        ended = subprocess.run(
            ["docker", *arguments],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"docker {' '.join(arguments)}: not finished after {timeout_s:.0f} s") from None
    if ended.returncode:
        raise EngineError(f"docker {' '.join(arguments)}: {(ended.stderr or ended.stdout).strip()[-3000:]}")
    return ended.stdout.strip()


def engine_version() -> str:
    """Return the versions of engine and Compose. Raises EngineError if one is missing."""
    if shutil.which("docker") is None:
        raise EngineError("there is no `docker` on PATH")
    engine = docker("version", "--format", "{{.Server.Version}}")
    return f"Docker {engine}, Compose {docker('compose', 'version', '--short')}"


def obtain(image: str) -> str | None:
    """Make sure that an image is present, by pulling it if needed; return None, or why it cannot be obtained."""
    try:
        docker("image", "inspect", image)
    except EngineError:
        try:
            docker("pull", "--quiet", image, timeout_s=PULL_TIMEOUT_S)
        except EngineError as error:
            return str(error).rpartition(": ")[2]
    return None


def size_mb(image: str) -> int:
    """Return the size of an image in MB."""
    return int(docker("image", "inspect", "--format", "{{.Size}}", image)) // 1_000_000
