"""Batches of a model without workers hold up none of another model."""

import asyncio

import pytest

from orcastream.gateway.batches.batch_turns import BatchTurns
from orcastream.schemas.keys import Keys
from tests.gateway.batches.conftest import begin, ended, line, results
from tests.gateway.conftest import Stage, eventually


@pytest.mark.parametrize("require_worker", [True, False])
async def test_a_batch_whose_model_has_no_workers_gives_up_its_turn(
    stage: Stage, model_folder: str, monkeypatch: pytest.MonkeyPatch, require_worker: bool
) -> None:
    """Its lines are refused, or wait in the queue. Once there is a worker, it continues."""
    monkeypatch.setattr("orcastream.gateway.batches.batches._LOOK_S", 0.02)
    monkeypatch.setattr("orcastream.gateway.batches.line_answers._SILENCE_S", 0.1)
    give_up, gave_up = BatchTurns.give_up, []

    async def tell(turns: BatchTurns, batch_id: str) -> None:
        gave_up.append(turns)
        await give_up(turns, batch_id)

    monkeypatch.setattr(BatchTurns, "give_up", tell)
    await stage.worker("second", name="other", keys=Keys("other"))
    served = await stage.gateway(more_models=(f"other={model_folder}",), require_worker=require_worker)
    client = served.openai()
    waiting = [await begin(client, line("a"), line("b")) for _ in range(5)]

    async def have_begun() -> bool:
        found = [await client.batches.retrieve(batch.id) for batch in waiting]
        return all(batch.status == "in_progress" for batch in found)

    await eventually(have_begun)
    batch = await ended(client, await begin(client, line("c", model="other")))
    assert batch.status == "completed"
    assert gave_up[-1].rotates
    worker = await stage.worker()
    for batch in await asyncio.gather(*(ended(client, batch) for batch in waiting)):
        assert batch.status == "completed"
        assert set(await results(client, batch.output_file_id)) == {"a", "b"}
    assert len({request.id for request in worker.requests}) == len(worker.requests) == 10
