"""Entry point of the worker process."""

import asyncio
import gc
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

import uvloop

from orcastream.broker.presence import new_process_name
from orcastream.telemetry.leaving import leaving, on_stop, stop_signals
from orcastream.telemetry.logs import set_up_logging
from orcastream.telemetry.settings import UnusableTelemetry
from orcastream.telemetry.setup import Telemetry, start_telemetry
from orcastream.telemetry.standard_streams import print_or_drop
from orcastream.worker.adapter_folders import adapter_folders
from orcastream.worker.admin import Admin, AdminPortUnavailable
from orcastream.worker.lean_torch import lean_torch
from orcastream.worker.metrics import WorkerMetrics
from orcastream.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from orcastream.engine import EngineConfig, OrcaEngine
    from orcastream.text.tokenizer import Tokenizer
    from orcastream.worker.adapter_shelf import AdapterShelf

log = logging.getLogger("orcastream.worker")

ENGINE_FAILED = 70
"""Exit status when the engine failed, lacked memory or threads, or stalled, or the event loop stalled; others take its
requests over after a lease."""

SWITCH_INTERVAL_S = 0.0005
"""The engine's thread holds the interpreter between its operators; the event loop must get its turn soon."""


def run(settings: WorkerSettings) -> int:
    """Load the model, serve until a signal says stop, drain. Return the exit status."""
    set_up_logging(settings.log_level, settings.log_form, content=settings.log_content)
    on_stop(leaving())
    name = new_process_name()
    try:
        telemetry = start_telemetry(
            "orcastream-worker",
            name,
            prometheus=settings.admin_port is not None,
            log_content=settings.log_content,
        )
        on_stop(leaving(telemetry))  # nothing is claimed before the worker serves, so there is nothing to drain
        metrics = WorkerMetrics(settings.keys().model)  # so that even the first scrape sees every counter, at 0
    except UnusableTelemetry as error:
        return _unusable(str(error))
    admin: Admin | None = None
    try:
        admin = _admin(settings, telemetry)
        return _run(settings, name, telemetry, metrics, admin)
    except AdminPortUnavailable as error:
        return _unusable(str(error))
    except RuntimeError as error:
        return _lacks_thread(error)
    finally:
        gc.enable()
        on_stop(signal.SIG_IGN)  # the shutdown is bounded, and a second signal must not cut it short
        if admin is not None:
            admin.close()
        telemetry.shut_down()


def _admin(settings: WorkerSettings, telemetry: Telemetry) -> Admin | None:
    if settings.admin_port is None or telemetry.registry is None:
        return None
    stall_timeout_s = settings.stall_timeout_s
    admin = Admin(settings.admin_host, settings.admin_port, telemetry.registry, stall_timeout_s=stall_timeout_s)
    log.info("admin port", extra={"host": settings.admin_host, "port": admin.port})
    return admin


def _run(settings: WorkerSettings, name: str, telemetry: Telemetry, metrics: WorkerMetrics, admin: Admin | None) -> int:
    # Read when torch is loaded. Threads that spin between operators take cores from the event loop and other processes.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    gc.disable()  # loading creates no garbage, and repeated collections would take half a second
    lean_torch(settings.device)
    from orcastream.engine import OrcaEngine, UnsupportedAdapter
    from orcastream.text.model_config import ModelFilesError
    from orcastream.text.tokenizer import Tokenizer
    from orcastream.worker.adapter_shelf import AdapterShelf

    gc.freeze()  # so that the collection below scans only what is loaded from here on
    _set_up_threads(settings.torch_threads)
    try:
        folders = adapter_folders(settings.adapters, settings.served_name)
    except ValueError as error:
        return _unusable(str(error))
    try:
        engine = OrcaEngine.load(_engine_config(settings, max_adapters=settings.max_adapters if folders else 0))
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        return _not_loaded(error)
    shelf = AdapterShelf(folders, engine.adapters, settings.max_adapters)
    try:
        shelf.check()
    except UnsupportedAdapter as error:
        return _unusable(f"adapters: {error}")
    try:
        tokenizer = Tokenizer.load(settings.model)
    except ModelFilesError as error:
        tokenizer = None
        extra = {"model": settings.model, "why": str(error)}
        log.warning("the model has no tokenizer: stop strings and constraints are refused", extra=extra)
    gc.collect()
    gc.freeze()  # a collection that scans everything loaded would block engine and event loop for 0.1 s
    gc.enable()
    return uvloop.run(_serve(settings, name, engine, tokenizer, shelf, telemetry, metrics, admin))


def _engine_config(settings: WorkerSettings, *, max_adapters: int) -> "EngineConfig":
    from orcastream.engine import EngineConfig

    return EngineConfig(
        model=settings.model,
        dtype=settings.dtype,
        weight_dtype=settings.weight_dtype,
        device=settings.device,
        kv_cache_memory=settings.kv_cache_memory,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_batch_size=settings.max_batch_size,
        max_model_len=settings.max_model_len,
        policy=settings.policy,
        admission=settings.admission,
        token_budget=settings.token_budget,
        tbt_target_ms=settings.tbt_target_ms,
        prefix_cache=settings.prefix_cache,
        kv_cache_dtype=settings.kv_cache_dtype,
        cuda_graphs=settings.cuda_graphs,
        attention_backend=settings.attention_backend,
        host_cache_memory=settings.host_cache_memory,
        preemption=settings.preemption,
        class_weight=settings.class_weight,
        max_adapters=max_adapters,
        max_adapter_rank=settings.max_adapter_rank,
    )


def _not_loaded(error: Exception) -> int:
    """Report why the engine could not be loaded; return the exit status. Raises an error that nobody foresaw."""
    from orcastream.engine import UnsupportedModel, is_out_of_memory

    if is_out_of_memory(error):
        log.critical("not enough memory to load the model", extra={"why": " ".join(str(error).split())})
        return ENGINE_FAILED
    if isinstance(error, UnsupportedModel | OSError):
        return _unusable(f"model: {error}")
    if isinstance(error, ValueError):  # its message names the setting
        return _unusable(str(error))
    raise error


def _lacks_thread(error: RuntimeError) -> int:
    """Report that the host refuses a thread without which there is no worker; return the exit status. Raises any other
    error.
    """
    from orcastream.engine import is_thread_refused

    if not is_thread_refused(error):
        raise error
    log.critical("the host refuses a thread that a worker needs", extra={"why": str(error)})
    return ENGINE_FAILED


def _unusable(why: str) -> int:
    print_or_drop(f"orcastream worker: {why}", sys.stderr)  # the exit code does not depend on it
    return 2


def _set_up_threads(torch_threads: int) -> None:
    import torch

    if torch_threads:
        torch.set_num_threads(torch_threads)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


async def _serve(
    settings: WorkerSettings,
    name: str,
    engine: "OrcaEngine",
    tokenizer: "Tokenizer | None",
    shelf: "AdapterShelf",
    telemetry: Telemetry,
    metrics: WorkerMetrics,
    admin: Admin | None,
) -> int:
    from orcastream.worker.engine_loop import EngineFailed
    from orcastream.worker.watchdog import Watchdog
    from orcastream.worker.worker import Worker

    keys = settings.keys()
    url = settings.connection_url or "redis://127.0.0.1:6379"
    worker = Worker(settings, url, keys, name, engine, tokenizer, shelf, metrics)
    if admin is not None:
        admin.watch(worker)
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, worker.drain)
    log.info("operators", extra=dict(worker.operators))
    log.info("serving", extra={"model": keys.model, "pid": os.getpid()})
    watchdog = Watchdog(loop, settings.stall_timeout_s, ENGINE_FAILED, telemetry)
    watchdog.start()
    try:
        await worker.run()
    except* EngineFailed as failed:
        error = failed.exceptions[0]
        try:
            log.critical("the engine failed", extra={"why": str(error)}, exc_info=error.__cause__)
            telemetry.shut_down()
            logging.shutdown()
        finally:  # even if there is no memory or thread for that
            os._exit(ENGINE_FAILED)  # its thread may hang inside an operator: there is no orderly way to end it
    finally:
        watchdog.stop()
    return 0
