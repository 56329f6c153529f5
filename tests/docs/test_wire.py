"""The broker's writes to a real server match schemas/asyncapi.yaml for each channel."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import pytest_asyncio
import yaml
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

from orcastream.broker.attach import Attached, attach
from orcastream.broker.cancel import cancel, drain
from orcastream.broker.claim import Claimer
from orcastream.broker.dead_letter import bury
from orcastream.broker.letters import newest_letters
from orcastream.broker.link import Link
from orcastream.broker.presence import Presence
from orcastream.broker.queue import RequestQueue
from orcastream.broker.stats import StatsStream
from orcastream.broker.terms import Terms
from orcastream.schemas.codec import Form
from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.events import Ending, Run, Started, Terminal, Usage
from orcastream.schemas.keys import Keys
from orcastream.schemas.request import GenerationRequest, Payload
from orcastream.schemas.stopping import FinishReason
from tests.redis_server import RedisServer

DOCUMENT = yaml.safe_load((Path(__file__).parents[2] / "schemas/asyncapi.yaml").read_text(encoding="utf-8"))
KEYS = Keys("org/m")
LEASE_MS = 5000
RETENTION_MS = 60_000


def validate(channel: str, message: str, part: str, value: object) -> None:
    """Check `value` against the headers or payload of a message of `channel`."""
    assert message in DOCUMENT["channels"][channel]["messages"]
    schema = DOCUMENT["components"]["messages"][message][part]
    Draft7Validator({**schema, "components": DOCUMENT["components"]}).validate(value)


def key_of(channel: str, **values: str) -> str:
    """Return the key that the document names for `channel`."""
    key: str = DOCUMENT["channels"][channel]["x-redis"]["key"]
    for name, value in {"namespace": KEYS.namespace, "model": KEYS.model, **values}.items():
        key = key.replace(f"<{name}>", value)
    return key


def texts(flat: list[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}


@pytest_asyncio.fixture
async def link(redis_server: RedisServer) -> AsyncIterator[Link]:
    link = await Link.open(redis_server.url)
    yield link
    await link.close()


async def posted(link: Link, form: Form = Form.JSON) -> GenerationRequest:
    """Post one request to the queue."""
    now_ms = await link.server_time_ms()
    request = GenerationRequest("r1", Payload(prompt=(1, 2)), now_ms + 60_000, "high", form, traceparent="00-aa")
    queue = RequestQueue(link, KEYS)
    await queue.ensure_groups()
    await queue.enqueue(request, terms=Terms(max_requests=10), retention_ms=RETENTION_MS)
    return request


async def only_entry(link: Link, key: str) -> tuple[bytes, list[bytes]]:
    [[entry_id, flat]] = await link.call("XRANGE", key, "-", "+")
    return entry_id, flat


@pytest.mark.parametrize("form", Form)
async def test_request_and_seen(link: Link, form: Form) -> None:
    await posted(link, form)
    entry_id, flat = await only_entry(link, key_of("requests", **{"class": "high"}))
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    payload = fields.pop(b"payload")
    validate("requests", "request", "headers", {name.decode(): value.decode() for name, value in fields.items()})
    if form is Form.JSON:
        validate("requests", "request", "payload", yaml.safe_load(payload))
    else:
        assert msgpack.unpackb(payload) == {"prompt": b"\x01\0\0\0\x02\0\0\0"}
    seen = (await link.call("GET", key_of("seen", id="r1"))).decode()
    assert seen == f"high {entry_id.decode()}"
    validate("seen", "seen", "payload", seen)


async def test_reply_log(link: Link) -> None:
    request = await posted(link)
    [claimed] = await _claimer(link).new(1)
    attachment = await attach(
        link,
        KEYS,
        request_id=request.id,
        worker="w",
        started=Started("w", KEYS.model, "default", "high", str(claimed.ref), 7, 2),
        ref=claimed.ref,
        form=request.form,
        log_expire_at_ms=request.deadline_ms + RETENTION_MS,
        retention_ms=RETENTION_MS,
    )
    assert isinstance(attachment, Attached)
    await attachment.log.append((Run(0, 0, (5,)),))
    await attachment.log.end(Terminal((Ending(FinishReason.LENGTH, 2),), Usage(2, 2), (Run(0, 1, (6,)),)))
    entries = await link.call("XRANGE", key_of("replies", lane="b1", id="r1"), "-", "+")
    kinds = []
    for _, flat in entries:
        fields = texts(flat)
        kinds.append(fields["type"])
        validate("replies", fields["type"], "headers", {"type": fields["type"]})
        validate("replies", fields["type"], "payload", yaml.safe_load(fields["payload"]))
        assert set(fields) == {"type", "payload"}
    assert kinds == ["started", "tokens", "finished"]
    ids = [entry_id.decode().split("-") for entry_id, _ in entries]
    assert len({epoch for epoch, _ in ids}) == 1
    assert [index for _, index in ids] == ["0", "1", "2"]


async def test_cancel_and_control(link: Link) -> None:
    request = await posted(link)
    await cancel(link, KEYS, request.id, expire_at_ms=request.deadline_ms)
    validate("cancel", "cancel", "payload", (await link.call("GET", key_of("cancel", id=request.id))).decode())
    assert await link.call("PTTL", key_of("cancel", id=request.id)) > 50_000
    await drain(link, KEYS, "w1")
    await StatsStream(link, KEYS).watch(for_ms=10_000)
    entries = await link.call("XRANGE", key_of("control"), "-", "+")
    told: list[dict[str, Any]] = [texts(flat) for _, flat in entries]
    assert [tuple(fields.values()) for fields in told] == [("cancel", request.id), ("drain", "w1"), ("watch", "*")]
    for fields in told:
        validate("control", "control", "payload", fields)


async def test_dead_letter(link: Link) -> None:
    await posted(link)
    [claimed] = await _claimer(link).new(1)
    assert await bury(link, KEYS, claimed.ref, reason=ErrorCode.DEAD_LETTER, message="no new token")
    _, flat = await only_entry(link, key_of("dead"))
    fields = texts(flat)
    assert list(fields)[:4] == ["entry", "reason", "message", "attempts"]
    validate("dead", "deadLetter", "payload", fields)
    [letter] = [one async for one in newest_letters(link, KEYS)]
    assert letter.request_id == "r1"


async def test_worker(link: Link) -> None:
    await Presence(link, KEYS, "w1").beat({"running": 3}, ttl_ms=5000)
    validate("workers", "worker", "payload", texts(await link.call("HGETALL", key_of("workers", worker="w1"))))
    assert await link.call("PTTL", key_of("workers", worker="w1")) > 0


def _claimer(link: Link) -> Claimer:
    return Claimer(link, KEYS, "w", lease_ms=LEASE_MS, retention_ms=RETENTION_MS, max_deliveries=3)
