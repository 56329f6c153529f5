"""Ask the service from Python: over HTTP or Redis, with asyncio or without, through restarts of whatever is there.

with Client(["http://a:8000", "http://b:8000"], "orca-demo") as client:
    print(client.generate("2 + 2 =").result().text)
"""

from client.async_client import AsyncClient
from client.errors import (
    Cancelled,
    ClientError,
    DeadLetter,
    EngineFailed,
    Expired,
    Lost,
    QueueFull,
    Refused,
    ReplyConflict,
    ReplyExpired,
    Unavailable,
)
from client.reply import AsyncReply
from client.request import Message, Parameters, Prompt
from client.result import Choice, Delta, Result
from client.sync_client import Client, Reply
from schemas.errors import InvalidRequest
from schemas.events import Usage

__all__ = [
    "AsyncClient",
    "AsyncReply",
    "Cancelled",
    "Choice",
    "Client",
    "ClientError",
    "DeadLetter",
    "Delta",
    "EngineFailed",
    "Expired",
    "InvalidRequest",
    "Lost",
    "Message",
    "Parameters",
    "Prompt",
    "QueueFull",
    "Refused",
    "Reply",
    "ReplyConflict",
    "ReplyExpired",
    "Result",
    "Unavailable",
    "Usage",
]
