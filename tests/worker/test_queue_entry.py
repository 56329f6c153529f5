"""A request stays one request if its queue entry is lost and posted again, or delivered a second time."""

from collections.abc import Callable

from orcastream.broker.entry import Mark
from orcastream.broker.fold import Fold
from orcastream.schemas.events import Started
from orcastream.schemas.keys import GROUP
from tests.redis_server import one_server
from tests.worker.conftest import StartWorker
from tests.worker.producer import LONG, Producer

pytestmark = one_server("embedded")


def test_request_posted_again_after_its_entry_was_lost_is_served(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], undisturbed: Callable
) -> None:
    start_worker()
    request = producer.request(count_prompt, **LONG)
    stream, entry_id = producer.keys.requests("normal"), producer.add(request.fields())
    for event_id, _ in producer.events(request.id):
        if event_id.index == 3:
            with producer.redis.pipeline(transaction=True) as pipeline:
                pipeline.xack(stream, GROUP, entry_id)
                pipeline.xdel(stream, entry_id)
                pipeline.xadd(stream, request.fields())
                pipeline.execute()
            break
    fold = producer.read(request.id)
    assert fold.terminal is not None
    assert fold.terminal.error is None
    assert fold.tokens[0] == undisturbed(count_prompt, **LONG)


def test_entry_claimed_again_while_it_runs_is_one_request(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], undisturbed: Callable
) -> None:
    start_worker(lease_ms=60_000)
    request_id = producer.post(count_prompt, **LONG)
    for event_id, _ in producer.events(request_id):
        if event_id.index == 3:  # the group that the worker then recreates delivers the entry a second time
            producer.redis.xgroup_destroy(producer.keys.requests("normal"), GROUP)
            break
    fold, epochs = Fold(), 0
    for event_id, event in producer.events(request_id):
        fold.feed(event_id, event)
        epochs += isinstance(event, Started)
    assert fold.tokens[0] == undisturbed(count_prompt, **LONG)
    assert epochs == 2


def test_seen_names_which_of_two_entries_stays(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int]
) -> None:
    """One worker gets both at once; the later entry is the one that was accepted last."""
    request = producer.request(count_prompt, **LONG)
    first, second = producer.add(request.fields()), producer.add(request.fields())
    producer.redis.set(producer.keys.seen(request.id), f"normal {second}")
    start_worker()
    assert producer.read(request.id).terminal is not None
    producer.wait_empty()
    mark = Mark.find(producer.redis.get(producer.keys.seen(request.id)))
    assert mark is not None
    assert str(mark.ref) == f"normal {first}"
