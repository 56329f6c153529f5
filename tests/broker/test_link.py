"""One connection: pipelining, errors, and permanent closing."""

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from orcastream.broker.errors import LinkLost, Unwritable, error_code
from orcastream.broker.link import Link
from orcastream.broker.resp import pack
from orcastream.broker.scripts import ENTRY_STATE, Script
from tests.broker.conftest import OpenLink
from tests.broker.proxy import LossyProxy
from tests.ports import free_port
from tests.redis_server import RedisServer


async def test_concurrent_calls_get_their_own_replies(link: Link) -> None:
    async def echo(number: int) -> int:
        return int(await link.call("ECHO", str(number)))

    assert await asyncio.gather(*(echo(number) for number in range(200))) == list(range(200))


async def test_call_many_keeps_errors_in_their_places(link: Link) -> None:
    await link.call("SET", "text", "x")
    replies = await link.call_many([("GET", "text"), ("INCR", "text"), ("GET", "none"), ("LRANGE", "none", 0, -1)])
    assert (replies[0], replies[2], replies[3]) == (b"x", None, [])
    assert isinstance(replies[1], ResponseError)
    assert await link.call_many([]) == []


async def test_a_server_error_is_raised(link: Link) -> None:
    with pytest.raises(ResponseError, match="unknown command"):
        await link.call("NOSUCHCOMMAND")
    with pytest.raises(NoScriptError):
        await link.call("EVALSHA", "0" * 40, 0)
    with pytest.raises(ResponseError) as caught:
        await link.call("EVAL", "return redis.error_reply('MISCONF no')", 0)
    assert error_code(caught.value) == "MISCONF"
    assert link.alive


@pytest.mark.parametrize(
    ("rule", "command"),
    [
        ("-get", ("GET", "key")),
        ("-get", ("EVAL", "return redis.call('GET', KEYS[1])", 1, "key")),
        ("~own:*", ("GET", "key")),
        ("~own:*", ("EVAL", "return redis.call('GET', KEYS[1])", 1, "key")),
        ("~own:*", ("EVAL", "return redis.call('GET', 'key')", 0)),
        ("-client", ("PING",)),
    ],
)
async def test_a_user_without_a_right_learns_where_both_are_named(
    redis_server: RedisServer, link: Link, open_link: OpenLink, rule: str, command: tuple[str | int, ...]
) -> None:
    """The server's errors name no key, and before 7.2 no user."""
    keys = () if rule.startswith("~") else ("~*",)
    await link.call("ACL", "SETUSER", "modest", "on", "nopass", *keys, "+@all", rule)
    try:
        with pytest.raises(ResponseError, match=r"ACL LOG .* docs/operations\.md"):
            await (await open_link(redis_server.url.replace("127.0.0.1", "modest:x@127.0.0.1"), name="own")).call(
                *command
            )
    finally:
        await link.call("ACL", "DELUSER", "modest")


async def test_an_error_in_a_script_has_the_code_of_its_command(
    own_redis: Callable[..., RedisServer], open_link: OpenLink
) -> None:
    """Redis 6.2, too, which says ERR, and names the place in the script first."""
    link = await open_link((await asyncio.to_thread(own_redis)).url)

    async def refused() -> str:
        with pytest.raises(ResponseError) as caught:
            await link.call("EVAL", "return redis.call('XADD', KEYS[1], '*', 'a', 'b')", 1, "key")
        assert str(caught.value).startswith(f"{error_code(caught.value)} ")
        assert "user_script" in str(caught.value)
        return error_code(caught.value)

    await link.call("SET", "key", "no stream")
    assert await refused() == "WRONGTYPE"
    await link.call("CONFIG", "SET", "min-replicas-to-write", "1")
    assert await refused() == "NOREPLICAS"
    await link.call("CONFIG", "SET", "min-replicas-to-write", "0")
    await link.call("CONFIG", "SET", "maxmemory", "1")
    assert await refused() == "OOM"


@pytest.mark.parametrize("write", [("SET", "key", "1"), ("EVAL", "return redis.call('SET', KEYS[1], '1')", 1, "key")])
async def test_the_link_leaves_a_server_that_became_a_replica(
    own_redis: Callable[..., RedisServer], open_link: OpenLink, write: tuple[str | int, ...]
) -> None:
    server = own_redis()
    link = await open_link(server.url)
    await link.call("REPLICAOF", "127.0.0.1", 1)
    assert await link.call("GET", "key") is None
    refused, waiting = asyncio.gather(link.call(*write), return_exceptions=True), link.wait_lost()
    assert [type(error) for error in await refused] == [ReadOnlyError]
    assert await waiting == "the server is a replica, and takes no writes"


async def test_a_cancelled_call_leaves_the_replies_in_step(link: Link) -> None:
    slow = asyncio.create_task(link.call("EVAL", "for i = 1, 3e6 do end return 'slow'", 0))
    await asyncio.sleep(0)
    slow.cancel()
    assert await link.call("ECHO", "next") == b"next"
    with pytest.raises(asyncio.CancelledError):
        await slow


async def test_order_is_kept_when_the_server_lacks_a_script(link: Link) -> None:
    text = "return redis.call('INCR', KEYS[1])"
    count = Script("count", text, sha1(text.encode()).hexdigest())
    commands: list[Any] = [count.call(["n"], []), ("GET", "n"), count.call(["n"], []), ("GET", "n")]
    assert await link.call_in_order(commands) == [1, b"1", 2, b"2"]
    assert await link.call_in_order(commands) == [3, b"3", 4, b"4"]
    await link.call("SCRIPT", "FLUSH")
    assert await link.call_in_order(commands) == [5, b"5", 6, b"6"]
    assert await link.call_in_order([]) == []


async def test_scripts_are_loaded_once_and_again_after_a_flush(link: Link) -> None:
    script = ENTRY_STATE
    for _ in range(2):
        assert await link.run(script, ["nothing"], ["workers", "1-1"]) == [0, b"", 0, 0]
        replies = await link.call_many([("ECHO", "a"), script.call(["nothing"], ["workers", "1-1"]), ("ECHO", "b")])
        assert replies == [b"a", [0, b"", 0, 0], b"b"]
        await link.call("SCRIPT", "FLUSH")
    broken = Script("broken", "return redis.call('NOPE')", "0" * 40)
    with pytest.raises(ResponseError):
        await link.run(broken, [], [])


async def test_a_killed_connection_ends_everything_in_flight(
    redis_server: RedisServer, link: Link, open_link: OpenLink
) -> None:
    victim = await open_link(redis_server.url)
    blocked = [asyncio.create_task(victim.call("BLPOP", f"nothing{i}", 4)) for i in range(3)]
    await asyncio.sleep(0)
    await link.call("CLIENT", "KILL", "ID", victim.client_id)
    for result in await asyncio.gather(*blocked, return_exceptions=True):
        assert isinstance(result, LinkLost)
    assert "closed" in await victim.wait_lost()
    assert not victim.alive
    with pytest.raises(LinkLost):
        await victim.call("PING")


async def test_a_missing_reply_kills_the_link(own_redis: Any, open_link: OpenLink) -> None:
    server = own_redis()
    link = await open_link(server.url, reply_timeout_s=2.5)
    server.freeze()
    try:
        with pytest.raises(LinkLost, match=r"no reply within 2\.5 s"):
            await link.call("PING")
    finally:
        server.thaw()
    with pytest.raises(LinkLost):
        await link.call("PING")


async def test_an_idle_link_does_not_time_out(redis_server: RedisServer, open_link: OpenLink) -> None:
    link = await open_link(redis_server.url, reply_timeout_s=1.5)
    await link.call("PING")
    await asyncio.sleep(2)
    assert await link.call("PING") == b"PONG"


async def test_a_lost_reply_kills_the_link(proxy: LossyProxy, open_link: OpenLink) -> None:
    link = await open_link(proxy.url)
    proxy.lose_next_reply()
    with pytest.raises(LinkLost):
        await link.call("INCR", "counter")


async def test_nothing_is_sent_twice(proxy: LossyProxy, link: Link, open_link: OpenLink) -> None:
    through = await open_link(proxy.url)
    proxy.lose_next_reply()
    with pytest.raises(LinkLost):
        await through.call("INCR", "counter")
    assert await link.call("GET", "counter") == b"1"


async def test_close_is_final_and_may_be_repeated(redis_server: RedisServer) -> None:
    link = await Link.open(redis_server.url, name="short")
    assert link.client_id > 0
    await link.close()
    await link.close()
    with pytest.raises(LinkLost):
        await link.call("PING")


class Observed:
    """Counts what a link reports."""

    def __init__(self) -> None:
        self.commands, self.durations, self.breaks = 0, list[float](), 0

    def sent(self, num_commands: int) -> None:
        self.commands += num_commands

    def answered(self, seconds: float) -> None:
        self.durations.append(seconds)

    def lost(self) -> None:
        self.breaks += 1


@pytest.mark.parametrize("blocking", [False, True])
async def test_an_observer_sees_commands_round_trips_and_breaks(
    redis_server: RedisServer, link: Link, blocking: bool
) -> None:
    observed = Observed()
    closed = await Link.open(redis_server.url, observer=observed, blocking=blocking)
    await closed.call_many([("PING",), ("PING",)])
    await closed.close()
    assert (observed.commands, observed.breaks) == (3, 0)  # CLIENT ID when the link was opened
    assert len(observed.durations) == (0 if blocking else 2)
    assert all(seconds >= 0 for seconds in observed.durations)
    killed = await Link.open(redis_server.url, observer=observed, blocking=blocking)
    await link.call("CLIENT", "KILL", "ID", killed.client_id)
    await killed.wait_lost()
    await killed.close()
    assert observed.breaks == 1


async def test_large_values_and_many_chunks(link: Link) -> None:
    value = bytes(range(256)) * 20_000
    await link.call("SET", "large", value)
    assert await link.call_many([("GET", "large")] * 3) == [value] * 3


@pytest.mark.parametrize("form", ["user", "db", "unix"])
async def test_urls(own_redis: Any, tmp_path: Any, open_link: OpenLink, form: str) -> None:
    socket = tmp_path / "redis.sock"
    server = own_redis(options=["--unixsocket", str(socket)])
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "orca", "on", ">secret", "~*", "+@all")
    urls = {
        "user": f"redis://orca:secret@127.0.0.1:{server.port}",
        "db": f"redis://127.0.0.1:{server.port}/3",
        "unix": f"unix://{socket}?db=3",
    }
    link = await open_link(urls[form], name="named")
    info = await link.call("CLIENT", "LIST", "ID", str(link.client_id))
    assert b"name=named" in info
    assert {"user": b"user=orca", "db": b"db=3", "unix": b"db=3"}[form] in info
    if form == "user":
        with pytest.raises(ResponseError, match="invalid username-password") as caught:
            await open_link(f"redis://orca:wrong@127.0.0.1:{server.port}")
        assert error_code(caught.value) == "WRONGPASS"


async def test_tls(own_redis: Any, tmp_path: Any, open_link: OpenLink) -> None:
    """rediss:// with the certificate checked."""
    key, certificate, port = tmp_path / "key.pem", tmp_path / "cert.pem", free_port()
    _make_certificate(key, certificate)
    names = {"--tls-port": port, "--tls-cert-file": certificate, "--tls-key-file": key, "--tls-auth-clients": "no"}
    try:
        own_redis(options=[str(part) for item in names.items() for part in item])
    except RuntimeError:
        pytest.skip("this redis-server was built without TLS")
    link = await open_link(f"rediss://127.0.0.1:{port}/?ssl_ca_certs={certificate}")
    assert await link.call_many([("ECHO", "x" * 300_000)] * 3) == [b"x" * 300_000] * 3
    with pytest.raises(LinkLost, match="CERTIFICATE_VERIFY_FAILED"):
        await open_link(f"rediss://127.0.0.1:{port}")


async def test_an_absent_server_is_a_lost_link() -> None:
    with pytest.raises(LinkLost, match="cannot connect"):
        await Link.open("redis://127.0.0.1:1")
    with pytest.raises(ValueError, match="scheme"):
        await Link.open("http://127.0.0.1:1")


async def test_a_server_that_does_not_answer_is_reported_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://user:word@127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(LinkLost, match=r"cannot connect: no answer within 0\.2 s"):
            await Link.open(url, reply_timeout_s=0.2)


def test_codes_of_errors() -> None:
    assert Unwritable(ResponseError("OOM command not allowed")).code == "OOM"
    assert Unwritable(ResponseError("something")).code == "ERR"


async def test_an_open_cancelled_at_any_point_leaves_nothing(redis_server: RedisServer, link: Link) -> None:
    """No cancellation is swallowed, and no connection remains open."""
    before = (await link.call("CLIENT", "LIST")).count(b"id=")
    for steps in range(40):
        opening = asyncio.create_task(Link.open(redis_server.url, name="cancelled"))
        for _ in range(steps):
            await asyncio.sleep(0)
        cancelled = opening.cancel()
        result = (await asyncio.gather(opening, return_exceptions=True))[0]
        assert isinstance(result, asyncio.CancelledError) or not cancelled, f"swallowed after {steps} steps"
        if isinstance(result, Link):
            await result.close()
    for _ in range(1000):
        if (await link.call("CLIENT", "LIST")).count(b"id=") == before:
            return
    pytest.fail("connections were left open")


def _make_certificate(key: Path, certificate: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to create a certificate with")
    make = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, *make.split(), *files], check=True, capture_output=True)


@pytest.mark.parametrize("cut", [1, 7, 1 << 20])
async def test_expected_replies_are_not_parsed(redis_server: RedisServer, open_link: OpenLink, cut: int) -> None:
    """However the bytes are cut; if one reply differs, all replies of its write are parsed, but no others."""
    link = await open_link(redis_server.url)
    received = link._received

    def cut_up(data: bytes) -> None:
        for begin in range(0, len(data), cut):
            received(data[begin : begin + cut])

    link._received = cut_up
    pings, pongs = pack(("PING",)) * 3, b"+PONG\r\n" * 3
    whole = link.send(pings, 3, pongs)
    assert await whole is None
    sent = [link.send(pings, 3, pongs), link.send(pings, 3, b"+PONG\r\n+PENG\r\n+PONG\r\n"), link.send(pings, 3)]
    sent.append(link.send(pings, 3, pongs))
    found = await asyncio.gather(*sent)
    assert found[1:3] == [[b"PONG"] * 3] * 2
    assert all(each in (None, [b"PONG"] * 3) for each in (found[0], found[3]))
    assert await link.send(pings, 3, pongs) is None
    assert link.alive


async def test_piggybacked_commands_precede_the_next_write_in_one_piece(
    redis_server: RedisServer, open_link: OpenLink
) -> None:
    """Whatever that write itself expects; the observer sees all commands."""
    observed = Observed()
    link = await open_link(redis_server.url, observer=observed)
    before = observed.commands
    link.post_along([("SET", "along", "1"), ("NOSUCHCOMMAND",)])
    link.post_along([("INCR", "along")])
    assert observed.commands == before
    assert await link.call("GET", "along") == b"2"
    assert observed.commands == before + 4
    link.post_along([("INCR", "along")])
    assert await link.send(pack(("PING",)), 1, b"+PONG\r\n") in (None, [b"PONG"])
    assert await link.send(pack(("PING",)), 1, b"+PONG\r\n") is None
    assert await link.call("GET", "along") == b"3"


async def test_piggybacked_commands_wait_for_no_other_write(redis_server: RedisServer, open_link: OpenLink) -> None:
    link, other = await open_link(redis_server.url), await open_link(redis_server.url)
    waiting = asyncio.ensure_future(other.call("BLPOP", "posted", 10))
    link.post_along([("RPUSH", "posted", "x")])
    assert await waiting == [b"posted", b"x"]
    await link.close()
    with pytest.raises(LinkLost):
        link.post_along([("PING",)])
