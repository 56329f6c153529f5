"""Requests, and running an engine until they end."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from orcastream.engine import OrcaEngine, Request, TokenEvent
from orcastream.engine.batch.flat_batch import FlatBatch
from orcastream.schemas.sampling import SamplingParams

MakeEngine = Callable[..., OrcaEngine]
MakeModel = Callable[..., PreTrainedModel]


def request(name: str, prompt: tuple[int, ...] = (1, 2, 3), outputs: tuple[int, ...] = (), **params: Any) -> Request:
    return Request(name, prompt, SamplingParams(**{"temperature": 0, "max_tokens": 8, **params}), output_ids=outputs)


def run(engine: OrcaEngine, *requests: Request) -> dict[str, list[TokenEvent]]:
    """Submit all at once and return the events per request."""
    events: dict[str, list[TokenEvent]] = {each.id: [] for each in requests}
    for each in requests:
        engine.submit(each)
    while engine.has_work:
        for event in engine.step():
            events[event.request_id].append(event)
        engine.check_integrity()
    assert engine.stats().blocks_used == 0
    return events


def break_row(engine: OrcaEngine, monkeypatch: pytest.MonkeyPatch, *, row: int, call: int) -> None:
    """Let one row of the logits of a later forward pass, counted from 1, be NaN."""
    forward, calls = engine._runner.forward, 0

    def broken(batch: FlatBatch, *_: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        logits = forward(batch).clone()
        if calls == call:
            logits[row] = torch.nan
        return logits

    monkeypatch.setattr(engine._runner, "forward", broken)


def tokens(events: list[TokenEvent]) -> list[int | None]:
    return [event.token for event in events]


def crowd(count: int = 6, **params: Any) -> list[Request]:
    """Return requests of different lengths, each with its own sampling settings."""
    settings: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 0.8, "top_k": 5, "seed": 4},
        {"temperature": 0},
        {"temperature": 1.3, "top_p": 0.9},
        {"temperature": 1.0, "min_p": 0.05, "logprobs": 2},
        {"temperature": 2.0, "top_k": 50, "top_p": 0.99},
    ]
    return [
        request(f"crowd-{index}", tuple(range(1, 4 + 5 * index)), max_tokens=12, **settings[index % 6], **params)
        for index in range(count)
    ]
