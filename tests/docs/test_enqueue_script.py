"""The call of enqueue.lua in docs/producers.md, run as written."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.redis_server import RedisServer, one_server

pytestmark = one_server("system")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "producers.md").read_text(encoding="utf-8")
CALL = re.search(r"```sh\n(Q=.*?)```", PAGE, re.DOTALL)


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="no redis-cli found on this machine")
def test_the_shown_call_enqueues_once_and_is_refused_at_a_bound(redis_server: RedisServer) -> None:
    assert CALL

    def run(script: str) -> list[str]:
        with redis_server.client() as client:
            deadline = str(client.time()[0] * 1000 + 60_000)  # type: ignore[index]
        variables = {"REDIS_URL": redis_server.url, "DEADLINE": deadline, "PATH": "/usr/bin:/bin:/usr/local/bin"}
        return subprocess.run(
            ["bash", "-c", script], cwd=ROOT, env=variables, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    entry, duplicate, depth = run(CALL[1])
    assert (entry.split()[0], duplicate, depth) == ("normal", "0", "1")
    assert run(CALL[1]) == [entry, "1", "1"]
    full = CALL[1].replace("my-request-1", "my-request-2").replace('"max_requests":1000', '"max_requests":1')
    assert run(full) == ["", "requests", "1", "1", "1000"]
