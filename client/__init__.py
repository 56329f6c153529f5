"""Python client of the service: over HTTP or Redis, with asyncio or without, through restarts of any component.

with Client(["http://a:8000", "http://b:8000"], "orca-demo") as client:
    print(client.generate("2 + 2 =").result().text)
"""

from orcastream.client.async_client import AsyncClient
from orcastream.client.errors import (
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
from orcastream.client.models import served_models
from orcastream.client.reply import AsyncReply
from orcastream.client.request import Constraint, Message, Parameters, Prompt
from orcastream.client.result import Choice, Delta, LikelyToken, Result, TokenLogprob
from orcastream.client.sync_client import Client, Reply
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.events import Usage

__all__ = [
    "AsyncClient",
    "AsyncReply",
    "Cancelled",
    "Choice",
    "Client",
    "ClientError",
    "Constraint",
    "DeadLetter",
    "Delta",
    "EngineFailed",
    "Expired",
    "InvalidRequest",
    "LikelyToken",
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
    "TokenLogprob",
    "Unavailable",
    "Usage",
    "served_models",
]
