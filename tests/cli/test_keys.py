"""`orcastream keys`: creates keys once, stores hashes, revokes keys; in a file and in Redis."""

import asyncio
import json
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orcastream.cli.keys.kept import KeptInFile
from orcastream.cli.main import main
from orcastream.gateway.admission.api_key import Grant, digest, read_grants
from tests.redis_server import RedisServer

Run = Callable[..., str]
LIMITS = ["--requests-per-minute", "60", "--max-concurrency", "4", "--queue-share", "0.25"]


@pytest.fixture(params=["file", "redis"])
def run(
    request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Run:
    """The tool that runs `orcastream keys …` on a file or on Redis and returns the output."""
    if request.param == "file":
        place = ["--api-keys-file", str(tmp_path / "keys.json")]
    else:
        place = ["--redis-url", redis_server.url]

    def one(*command: str, code: int = 0) -> str:
        assert main(["keys", *command, *place]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return one


def test_a_key_is_printed_once_and_stored_as_a_hash(run: Run) -> None:
    key = run("new", "--tenant", "alpha", "--name", "ci").strip()
    run("new", "--tenant", "beta", "--classes", "low", "--max-tokens", "5", "--expires-in-s", "60", *LIMITS)
    listed = [json.loads(line) for line in run("list", "--json").splitlines()]
    assert key not in run("list") + run("list", "--json")
    assert {row["sha256"]: row["tenant"] for row in listed}[digest(key)] == "alpha"
    (other,) = [row for row in listed if row["tenant"] == "beta"]
    assert (other["classes"], other["max_tokens"]) == (["low"], 5)
    assert (other["requests_per_minute"], other["max_concurrency"]) == (60, 4)
    assert other["queue_share"] == 0.25
    assert time.time() < other["expires"] <= time.time() + 60
    assert json.loads(run("revoke", digest(key)[:12], "--json")) == {"revoked": digest(key)}
    assert [json.loads(line)["tenant"] for line in run("list", "--json").splitlines()] == ["beta"]
    assert run("revoke", digest(key), code=1).count("\n") == 1
    assert run("new", "--tenant", "no name", code=2).count("\n") == 1


@pytest.mark.parametrize("command", [("list",), ("revoke", "0123456789")])
def test_a_missing_file_is_named(command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "mistyped.json")
    assert main(["keys", *command, "--api-keys-file", path]) == 1
    assert capsys.readouterr().err == (
        f"orcastream keys {command[0]}: the keys in {path!r} cannot be read or written: No such file or directory\n"
    )


def test_what_a_key_allows_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--api-keys-file", str(tmp_path / "keys.json")]
    assert main(["keys", "new", "--tenant", "alpha", "--classes", "low,high", "--max-tokens", "64", *place]) == 0
    printed = capsys.readouterr()
    [grant] = read_grants((tmp_path / "keys.json").read_text()).values()
    assert (grant.tenant, grant.max_tokens) == ("alpha", 64)
    assert printed.out.count("\n") == 1
    assert printed.err == "orcastream keys new: tenant alpha, classes ['low', 'high'], max_tokens 64\n"


def test_the_table_shows_everything_that_a_key_allows(run: Run) -> None:
    run("new", "--tenant", "beta", "--classes", "low,normal", "--max-tokens", "5", "--expires-in-s", "90000", *LIMITS)
    head, row = run("list").splitlines()
    cells = dict(zip(head.split(), row.split(), strict=True))
    del cells["sha256"]
    assert cells == {
        "tenant": "beta",
        "name": "-",
        "classes": "low,normal",
        "max_tokens": "5",
        "requests_per_minute": "60",
        "max_concurrency": "4",
        "queue_share": "0.25",
        "expires_in": "1d00h",
    }


def test_a_file_of_keys_is_replaced_and_keeps_its_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.json"
    new = ["keys", "new", "--tenant", "alpha", "--api-keys-file", str(path)]
    assert main(new) == 0
    assert path.stat().st_mode & 0o077 == 0
    path.chmod(0o640)
    assert main(new) == 0
    assert path.stat().st_mode & 0o777 == 0o640
    assert len(read_grants(path.read_bytes())) == 2
    path.write_text("junk")
    assert main(new) == 1
    assert path.read_text() == "junk"
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.json"]


def test_the_file_behind_a_symbolic_link_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path, link = folder / "keys.json", tmp_path / "link.json"
    link.symlink_to("folder/keys.json")
    for file in (link, path):
        assert main(["keys", "new", "--tenant", "alpha", "--api-keys-file", str(file)]) == 0
    keys = capsys.readouterr().out.splitlines()
    assert main(["keys", "revoke", digest(keys[1]), "--api-keys-file", str(link)]) == 0
    assert link.is_symlink()
    assert list(read_grants(path.read_bytes())) == [digest(keys[0])]


def test_keys_created_at_the_same_time_are_all_stored(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = {digest(f"key {number}") for number in range(16)}

    def add(hashed: str) -> None:
        asyncio.run(KeptInFile(path).add(hashed, Grant(tenant="alpha")))

    with ThreadPoolExecutor(len(keys)) as threads:
        list(threads.map(add, keys))
    assert set(read_grants(path.read_bytes())) == keys


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_of_keys_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    new = ["keys", "new", "--tenant", "alpha", "--api-keys-file", str(path)]
    assert main(new) == 0
    os.chown(path, 10001, 10002)
    assert main(new) == 0
    assert (path.stat().st_uid, path.stat().st_gid, path.stat().st_mode & 0o777) == (10001, 10002, 0o600)


def test_a_gateway_does_not_start_without_its_file_of_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.json"
    assert main(["gateway", "--redis-url", "redis://127.0.0.1:1", "--api-keys-file", str(missing)]) == 2
    assert capsys.readouterr().err == (
        f"orcastream gateway: api_keys_file (--api-keys-file, ORCASTREAM_API_KEYS_FILE): got {str(missing)!r}, "
        "allowed: a file of keys that can be read (No such file or directory)\n"
    )


def test_unwritable_keys_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.json"
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, was[1]))  # Python ignores SIGXFSZ
    try:
        assert main(["keys", "new", "--tenant", "alpha", "--api-keys-file", str(path)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, was)
    assert "cannot be read or written: File too large" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_unwritable_file_of_keys_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "missing" / "keys.json"
    assert main(["keys", "new", "--tenant", "alpha", "--api-keys-file", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"orcastream keys new: the keys in {str(path)!r} cannot be read or written: No such file or directory\n"
    )
