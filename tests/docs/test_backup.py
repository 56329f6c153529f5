"""The commands for backups in docs/operations.md copy every byte, and bring it back."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.redis_server import RedisServer, one_server

pytestmark = one_server("system")

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^redis-cli (.* (?:DUMP|RESTORE) [^#\n]*?)(?:\s*#.*)?$", PAGE, re.MULTILINE)
DEAD, KEYS = "orca:{orca-demo}:dead", "orca:api-keys"


def can_restore() -> bool:
    """Whether there is a redis-cli that can read an argument from a file."""
    cli = shutil.which("redis-cli")
    return cli is not None and "-X " in subprocess.run([cli, "--help"], capture_output=True, text=True).stdout


@pytest.mark.skipif(not can_restore(), reason="no redis-cli 7.0 on PATH")
def test_a_copy_has_every_byte_and_can_be_restored(redis_server: RedisServer, tmp_path: Path) -> None:
    letter = {b"payload": bytes(range(256)), b"message": b'said "no"\n'}
    grants = {b"0f": b'{"tenant": "team-a"}'}
    copy_letters, copy_keys, restore_keys = COMMANDS
    restore_letters = restore_keys.replace(KEYS, DEAD).replace("api-keys.", "dead-letters.")
    with redis_server.client() as redis:
        entry = redis.xadd(DEAD, letter)
        redis.hset(KEYS, mapping=grants)
        for command in (copy_letters, copy_keys):
            run(command, redis_server, tmp_path)
        redis.delete(DEAD, KEYS)
        for command in (restore_keys, restore_letters):
            run(command, redis_server, tmp_path)
        assert redis.xrange(DEAD) == [(entry, letter)]
        assert redis.hgetall(KEYS) == grants


def run(command: str, server: RedisServer, directory: Path) -> None:
    """Run a command of the page against `server`."""
    subprocess.run(f"redis-cli -u {server.url} {command}", shell=True, cwd=directory, check=True)
