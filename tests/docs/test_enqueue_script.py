"""The call of enqueue.lua in docs/producers.md, run as written."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from tests.redis_server import RedisServer, one_server

pytestmark = one_server("system")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "producers.md").read_text(encoding="utf-8")
CALL = re.search(r"```sh\n(Q=.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(
    ("shown", "written"),
    [
        ('"tenant":"default",', ""),
        ('"length":64,', ""),
        ('"tenant":"default"', '"tenant":null'),
        ('"tenant":"default"', '"tenant":"a b"'),
        ('"tokens":67', '"tokens":-67'),
        ('"tokens":67', '"tokens":1e300'),
        ('"max_requests":1000', '"max_requests":null'),
        ('"max_requests":1000', '"max_requests":"1000"'),
        ('"max_requests":1000', '"max_request":1000'),
    ],
)
def test_a_wrong_object_is_refused_by_the_name_of_its_field_with_nothing_written(
    redis_server: RedisServer, shown: str, written: str
) -> None:
    assert CALL
    found = re.search(
        r"'({.*?})'", CALL[1].replace("'$DEADLINE'", "9").replace("'$((DEADLINE + 600000))'", "9"), re.DOTALL
    )
    assert found
    assert shown in found[1]
    queue = "orca:{orca-demo}"
    keys = [f"{queue}:requests:{name}" for name in ("realtime", "high", "normal", "low")]
    keys += [f"{queue}:{name}" for name in ("seen:r1", "work", "throughput", "rate:default")]
    script = (ROOT / "broker" / "scripts" / "enqueue.lua").read_text(encoding="utf-8")
    field = (written or shown).split('"')[1]
    with redis_server.client() as client:
        with pytest.raises(ResponseError, match=rf"^{field}: "):
            client.eval(script, len(keys), *keys, found[1].replace(shown, written), "id", "r1", "payload", "{}")
        assert client.keys() == []


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
    with redis_server.client() as client:
        client.delete("orca:{orca-demo}:requests:normal")
    assert run(CALL[1]) == [entry, "1", "0"], "as the page says, it does not replace an entry that was lost"
