"""Gateways and scripted workers of the gateway's tests, and clients in front of them."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from orcastream.client import AsyncClient
from tests.gateway.conftest import MODEL, model_folder, redis_binary, stage, stage_of, tokenizer
from tests.patience import PATIENCE_S

__all__ = ["model_folder", "redis_binary", "stage", "stage_of", "tokenizer"]

Connect = Callable[..., AsyncClient]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """A factory of clients, which are closed after the test."""
    clients: list[AsyncClient] = []

    def one(*urls: str, **options: Any) -> AsyncClient:
        clients.append(AsyncClient(urls, MODEL, **{"patience_s": PATIENCE_S, **options}))
        return clients[-1]

    yield one
    for client in clients:
        await client.aclose()
