"""Assembles a worker's parts from its settings."""

from orcastream.engine import OrcaEngine
from orcastream.schemas.keys import Keys
from orcastream.text.tokenizer import Tokenizer
from orcastream.worker.adapter_shelf import AdapterShelf
from orcastream.worker.adapter_waits import AdapterWaits
from orcastream.worker.admission import Admission
from orcastream.worker.core_binding import core_binding
from orcastream.worker.engine_loop import EngineLoop
from orcastream.worker.isolation import Isolation
from orcastream.worker.iteration_trace import IterationTrace
from orcastream.worker.keeper import Keeper
from orcastream.worker.lifecycle import Lifecycle
from orcastream.worker.meter import ThroughputMeter
from orcastream.worker.metrics import WorkerMetrics
from orcastream.worker.outbox import Outbox
from orcastream.worker.parts import Parts
from orcastream.worker.policy_switch import PolicySwitch
from orcastream.worker.publisher import Publisher
from orcastream.worker.restoring import Restorer
from orcastream.worker.roster import Roster
from orcastream.worker.settings import WorkerSettings
from orcastream.worker.stats.recorder import IterationRecorder
from orcastream.worker.stats.story import EngineStory
from orcastream.worker.stats.teller import StatsTeller


def assemble(
    settings: WorkerSettings,
    keys: Keys,
    name: str,
    engine: OrcaEngine,
    tokenizer: Tokenizer | None,
    shelf: AdapterShelf,
    metrics: WorkerMetrics,
) -> Parts:
    """Return the parts around `engine`, whose thread has not been started; `metrics` observe them from now on."""
    num_places = engine.config.num_places
    roster = Roster(num_places + settings.most_waiting(engine.config.policy, num_places))
    lifecycle = Lifecycle(keys, name, metrics)
    publisher = Publisher(lifecycle, lambda num_tokens: engine_loop.published(num_tokens))
    outbox = Outbox(roster, publisher)
    recorder = IterationRecorder()
    iteration_trace = IterationTrace(keys.model, settings.iteration_trace_ratio, roster.span_context)
    observers = (metrics.iterated, iteration_trace.iterated, recorder.iterated)
    engine_loop = EngineLoop(
        engine,
        outbox.deliver,
        max_unpublished=settings.max_unpublished,
        lease_s=settings.lease_ms / 1000,
        listeners=(*core_binding(settings, engine), *observers),
    )
    restorer = Restorer(settings.retention_ms, engine.eos_token_ids)
    policy_switch = PolicySwitch(settings, engine, engine_loop, roster)
    parts = Parts(
        keys=keys,
        name=name,
        engine=engine,
        engine_loop=engine_loop,
        isolation=Isolation(engine_loop),
        roster=roster,
        shelf=shelf,
        adapter_waits=AdapterWaits(shelf),
        admission=Admission(settings, engine, tokenizer, shelf.names, roster, keys, name, lifecycle, restorer),
        publisher=publisher,
        outbox=outbox,
        keeper=Keeper(settings, engine_loop, roster, metrics),
        restorer=restorer,
        lifecycle=lifecycle,
        metrics=metrics,
        meter=ThroughputMeter(settings.class_weight),
        policy_switch=policy_switch,
        stats=StatsTeller(recorder, EngineStory(name, engine, roster, policy_switch)),
        max_claims=settings.max_claims,
        presence_ttl_ms=settings.lease_ms,
        retention_ms=settings.retention_ms,
    )
    _watch(parts)
    return parts


def _watch(parts: Parts) -> None:
    """Let the metrics read the parts' gauges and totals when they are collected."""
    engine, roster, shelf = parts.engine, parts.roster, parts.shelf
    parts.metrics.watch_engine(
        engine.stats, token_budget=engine.config.token_budget_tokens, publish_s=lambda: parts.publisher.busy_s
    )
    parts.metrics.watch_worker(
        claimed=roster.__len__,
        capacity=lambda: roster.capacity,
        unpublished=lambda: parts.engine_loop.unpublished,
    )
    parts.metrics.watch_adapters(
        loaded=lambda: shelf.num_resident,
        loads=lambda: shelf.reads,
        evictions=lambda: shelf.evictions,
        waiting=parts.adapter_waits.__len__,
    )
