"""Files: stored in pieces, listed in pages, read back unchanged, gone once deleted or expired; private to a tenant."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Literal

import httpx
import openai
import pytest

from orcastream.broker.files.file_store import PIECE_BYTES
from orcastream.schemas.keys import Keys
from tests.gateway.batches.conftest import CHAT, upload
from tests.gateway.conftest import MODEL, Stage, eventually
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer

KEYS = {"api_keys": {"one": "red", "two": "blue"}}


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, 2 * PIECE_BYTES + 1])
async def test_a_file_equals_the_upload(stage: Stage, size: int) -> None:
    first, second = await stage.gateway(), await stage.gateway()
    content = os.urandom(size)
    file = await first.openai().files.create(file=("in.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose, file.status, file.object) == (
        size,
        "in.jsonl",
        "batch",
        "processed",
        "file",
    )
    client = second.openai()
    assert await client.files.retrieve(file.id) == file
    assert (await client.files.content(file.id)).content == content


async def test_files_are_listed_in_pages(stage: Stage) -> None:
    client = (await stage.gateway()).openai()
    ids = [await upload(client, b"x") for _ in range(5)]
    newest_first = ids[::-1]
    assert [file.id async for file in client.files.list()] == newest_first
    assert [file.id async for file in client.files.list(limit=2)] == newest_first
    page = await client.files.list(limit=2, order="asc", after=ids[0])
    assert ([file.id for file in page.data], page.has_more) == (ids[1:3], True)
    assert [file.id async for file in client.files.list(purpose="batch_output")] == []


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_page_follows_a_file_that_is_gone(stage: Stage, order: Literal["asc", "desc"]) -> None:
    """As when a client deletes what it lists, page by page."""
    client = (await stage.gateway()).openai()
    ids = {await upload(client, b"x") for _ in range(5)}
    deleted = [await client.files.delete(file.id) async for file in client.files.list(limit=2, order=order)]
    assert {file.id for file in deleted} == ids
    assert (await client.files.list(after=deleted[0].id)).data == []
    with pytest.raises(openai.BadRequestError, match="the id of an object in the list"):
        await client.files.list(after="file-none")


async def test_a_download_of_a_file_that_is_deleted_meanwhile_breaks_off(
    stage: Stage, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    served = await stage.gateway()
    file_id = await upload(served.openai(), bytes(2 * PIECE_BYTES))
    with redis_server.client() as redis:
        redis.xdel(Keys(MODEL).file_pieces(file_id), "2-0")
    with pytest.raises(httpx.RemoteProtocolError, match="closed connection"):
        await served.http().get(f"/v1/files/{file_id}/content")
    assert "Traceback" not in capsys.readouterr().err


async def test_the_head_of_a_content_reads_one_piece(stage: Stage, redis_server: RedisServer) -> None:
    served = await stage.gateway()
    file_id = await upload(served.openai(), bytes(3 * PIECE_BYTES))
    with redis_server.client() as redis:
        redis.config_resetstat()
        answer = await served.http().head(f"/v1/files/{file_id}/content")
        assert redis.info("commandstats")["cmdstat_xrange"]["calls"] == 1
    assert (answer.status_code, answer.headers["content-length"]) == (200, str(3 * PIECE_BYTES))


async def test_deleted_and_expired_files_are_gone(stage: Stage, redis_server: RedisServer) -> None:
    client, keys = (await stage.gateway(files_retention_s=7200)).openai(), Keys(MODEL)
    deleted, expired = await upload(client, b"x"), await upload(client, b"y")
    kept = await client.files.create(
        file=b"z", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert kept.expires_at == kept.created_at + 3600
    assert (await client.files.delete(deleted)).deleted
    with redis_server.client() as redis:
        assert redis.exists(keys.file_pieces(deleted)) == 0
        assert 3500 < redis.ttl(keys.file_pieces(kept.id)) <= 3600
        assert 7000 < redis.ttl(keys.file_pieces(expired)) <= 7200
        entry = json.loads(redis.hget(keys.files("default"), expired) or "")
        redis.hset(keys.files("default"), expired, json.dumps({**entry, "expires_ms": 1}))
    assert [file.id async for file in client.files.list()] == [kept.id]
    for gone in (deleted, expired, "file-none"):
        for ask in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError, match="No file"):
                await ask(gone)


async def test_a_file_belongs_to_its_tenant(stage: Stage) -> None:
    served = await stage.gateway(**KEYS)
    mine, other = served.openai("one"), served.openai("two")
    file_id = await upload(mine, b"x")
    assert (await mine.files.retrieve(file_id)).bytes == 1
    assert [file.id async for file in other.files.list()] == []
    for ask in (other.files.retrieve, other.files.content, other.files.delete):
        with pytest.raises(openai.NotFoundError):
            await ask(file_id)
    with pytest.raises(openai.AuthenticationError):
        await served.openai("none").files.list()


async def test_a_tenant_is_told_of_an_unreadable_file(stage: Stage, redis_server: RedisServer) -> None:
    """Another version wrote it, or it is damaged; other files are unaffected, and it can be deleted."""
    served, keys = await stage.gateway(**KEYS), Keys(MODEL)
    client, other = served.openai("one"), served.openai("two")
    wrong, kept = await upload(client, b"x"), await upload(client, b"y")
    with redis_server.client() as redis:
        entry = json.loads(redis.hget(keys.files("red"), wrong) or "")
        lacking = {name: value for name, value in entry.items() if name != "expires_ms"}
        changed = [[], lacking, entry | {"unknown": 1}, entry | {"size_bytes": None}, entry | {"expires_ms": "soon"}]
        for text in ("{", b"\xff", "[" * 10_000, *map(json.dumps, changed)):
            redis.hset(keys.files("red"), wrong, text)
            for ask in (client.files.retrieve, client.files.content):
                with pytest.raises(openai.ConflictError, match="another version made it, or it is damaged") as refused:
                    await ask(wrong)
                assert (refused.value.code, refused.value.param) == ("file_unreadable", "id")
            with pytest.raises(openai.ConflictError) as refused:
                await client.batches.create(input_file_id=wrong, endpoint=CHAT, completion_window="24h")
            assert (refused.value.code, refused.value.param) == ("file_unreadable", "input_file_id")
            with pytest.raises(openai.NotFoundError):
                await other.files.delete(wrong)
            assert [file.id async for file in client.files.list()] == [kept]
            added = await upload(client, b"z")
            assert (await client.files.delete(added)).deleted
        assert (await client.files.delete(wrong)).deleted
        assert redis.exists(keys.file_pieces(wrong)) == 0
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(wrong)


async def test_bytes_and_files_per_tenant_are_bounded(stage: Stage) -> None:
    bounds = {"max_file_bytes": 1024, "max_files_bytes": 3000, "max_files": 4}
    served = await stage.gateway(**KEYS, **bounds)
    client = served.openai("one")
    full = [await upload(client, bytes(1000)) for _ in range(2)]
    with pytest.raises(openai.RateLimitError, match=r"Your files would be \d+ bytes, allowed: 3000") as refused:
        await upload(client, bytes(1000))
    assert (refused.value.code, refused.value.response.headers["x-should-retry"]) == ("files_full", "false")
    await upload(served.openai("two"), bytes(1000))
    await client.files.delete(full[0])
    for _ in range(3):
        await upload(client, b"x")
    with pytest.raises(openai.RateLimitError, match="5 files, allowed: 4"):
        await upload(client, b"x")


async def test_uploads_of_unknown_length_take_no_more_room_than_they_have_bytes(
    stage: Stage, redis_server: RedisServer
) -> None:
    """Node's client sends files that it streams from the disk without Content-Length."""
    most = 8 * PIECE_BYTES
    served = await stage.gateway(max_file_bytes=most, max_files_bytes=most)

    async def chunks(num_bytes: int) -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        yield bytes(num_bytes) + b"\r\n--x--\r\n"

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    async with served.http() as http:
        sizes = (1, most // 2, most - 1)
        posted = [await http.post("/v1/files", content=chunks(size), headers=headers) for size in sizes]
    assert [answer.status_code for answer in posted] == [200, 200, 429]
    assert posted[-1].json()["error"]["code"] == "files_full"
    with redis_server.client() as redis:
        assert len(redis.keys("*:file:*:pieces")) == 2


async def test_an_oversized_file_leaves_nothing(stage: Stage, redis_server: RedisServer) -> None:
    served = await stage.gateway(max_file_bytes=PIECE_BYTES + 10)
    with pytest.raises(openai.APIStatusError) as refused:
        await upload(served.openai(), bytes(2 * PIECE_BYTES))
    assert (refused.value.status_code, refused.value.code) == (413, "body_too_large")

    async def chunks() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        for _ in range(4):
            yield bytes(PIECE_BYTES // 2)
        yield b"\r\n--x--\r\n"

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    async with served.http() as http:
        assert (await http.post("/v1/files", content=chunks(), headers=headers)).status_code == 413
    with redis_server.client() as redis:
        assert redis.keys("*:file*") == []


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"data": {"purpose": "vision"}, "files": {"file": b"x"}}, "purpose"),
        ({"data": {"purpose": "batch"}, "files": {"other": b"x"}}, "file"),
        ({"data": {"purpose": "batch", "more": "1"}, "files": {"file": b"x"}}, "more"),
        ({"files": {"file": b"x"}}, "purpose"),
        ({"data": {"purpose": "batch", "expires_after[seconds]": "60"}, "files": {"file": b"x"}}, "expires_after"),
        ({"json": {"purpose": "batch"}}, "Content-Type"),
        ({"data": {"purpose": "batch" * 1000}, "files": {"file": b"x"}}, "purpose"),
    ],
)
async def test_a_wrong_form_is_refused_by_name(
    stage: Stage, redis_server: RedisServer, form: dict[str, object], param: str
) -> None:
    async with (await stage.gateway()).http() as http:
        refused = await http.post("/v1/files", **form)  # type: ignore[arg-type]
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"].startswith(param)
    with redis_server.client() as redis:
        assert redis.keys("*:file*") == []


@pytest.mark.parametrize(
    ("seconds", "told"),
    [("abc", "got 'abc', allowed: an integer"), ("1234568", "got 1234568, allowed: 3600 to 1234567")],
)
async def test_a_wrong_expiry_is_refused_by_the_forms_own_name(stage: Stage, seconds: str, told: str) -> None:
    data = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": seconds}
    async with (await stage.gateway(files_retention_s=1234567)).http() as http:
        refused = await http.post("/v1/files", data=data, files={"file": b"x"})
    error = refused.json()["error"]
    assert (error["param"], error["message"]) == ("expires_after[seconds]", f"expires_after[seconds]: {told}")


@pytest.mark.parametrize("boundary", ["x" * 5000, '""', "\xff"])
async def test_an_invalid_boundary_is_refused(stage: Stage, boundary: str) -> None:
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}".encode("latin-1")}
    async with (await stage.gateway()).http() as http:
        refused = await http.post("/v1/files", content=b"--x--", headers=headers)  # type: ignore[arg-type]  # bytes
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["code"] == "invalid_request"


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
@pytest.mark.parametrize("limit", ["0", "9" * 5000, "0" * 5000 + "1", "²", "many"])
async def test_an_invalid_limit_is_named(stage: Stage, path: str, limit: str) -> None:
    async with (await stage.gateway()).http() as http:
        refused = await http.get(path, params={"limit": limit})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "limit")


async def test_an_upload_that_redis_lost_a_part_of_is_refused(stage: Stage, redis_server: RedisServer) -> None:
    """Redis restarted with less than it had, or the time for an upload passed while the gateway was stopped."""
    served, tail = await stage.gateway(), asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + bytes(PIECE_BYTES + 1)
        await tail.wait()
        yield bytes(PIECE_BYTES) + b"\r\n--x--\r\n"

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    async with served.http() as http:
        posting = asyncio.create_task(http.post("/v1/files", content=chunks(), headers=headers))
        with redis_server.client() as redis:

            async def is_one_deleted() -> bool:
                return bool(redis.delete(*redis.keys("*:file:*:pieces") or ["none"]))

            await eventually(is_one_deleted)
            tail.set()
            refused = await posting
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "file_lost")
            assert redis.keys("*:file*") == []


async def test_a_client_that_disconnects_leaves_nothing(stage: Stage, redis_server: RedisServer) -> None:
    served = await stage.gateway()
    begun = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + bytes(PIECE_BYTES)
        begun.set()
        await asyncio.Event().wait()

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    http = httpx.AsyncClient(base_url=served.url, timeout=PATIENCE_S)
    posting = asyncio.create_task(http.post("/v1/files", content=chunks(), headers=headers))
    await begun.wait()
    with redis_server.client() as redis:

        async def are_pieces_there() -> bool:
            return bool(redis.keys("*:file:*"))

        async def is_nothing_there() -> bool:
            return not redis.keys("*:file*")

        await eventually(are_pieces_there)
        posting.cancel()
        await asyncio.gather(posting, return_exceptions=True)
        await http.aclose()
        await eventually(is_nothing_there)
