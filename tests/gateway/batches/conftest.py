"""Batches through gateways in this process, in front of a scripted worker."""

import json
from typing import Any, Final

import openai
from openai.types import Batch

from tests.gateway.conftest import MODEL, eventually

ENDED = ("completed", "failed", "cancelled", "expired")
CHAT: Final = "/v1/chat/completions"


def line(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": "x"}]} if url == CHAT else {"prompt": "x"}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": MODEL, **asked, **body}}


def file_of(*lines: object) -> bytes:
    return b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in lines)


async def upload(client: openai.AsyncOpenAI, content: bytes, **options: Any) -> str:
    return (await client.files.create(file=("in.jsonl", content), purpose="batch", **options)).id


async def begin(client: openai.AsyncOpenAI, *lines: object, endpoint: Any = CHAT, **options: Any) -> Batch:
    """Begin a batch of these lines."""
    file_id = await upload(client, file_of(*lines))
    return await client.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window="24h", **options)


async def ended(client: openai.AsyncOpenAI, batch: Batch) -> Batch:
    async def has_ended() -> Batch | None:
        now = await client.batches.retrieve(batch.id)
        return now if now.status in ENDED else None

    found: Batch = await eventually(has_ended)
    return found


async def results(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    """Return the lines of a results file by custom id; no id occurs twice."""
    assert file_id is not None
    content = (await client.files.content(file_id)).content
    lines = [json.loads(each) for each in content.splitlines()]
    found = {each["custom_id"]: each for each in lines}
    assert len(found) == len(lines)
    assert (await client.files.retrieve(file_id)).bytes == len(content)
    return found
