"""The engine: requests in, one iteration at a time, tokens out."""

import logging
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from engine.attention import choose_backend
from engine.batch.executor import Executor, Pending
from engine.config import EngineConfig
from engine.model.cache_setup import make_cache
from engine.model.load import (
    eos_token_ids,
    load_model,
    load_model_config,
    resolve_device,
    resolve_max_model_len,
)
from engine.model.runner import ModelRunner
from engine.model.self_check import check_loaded, check_small_copy
from engine.model.support import refuse_unsupported
from engine.offline import generate
from engine.output import Completion, EngineStats, TokenEvent
from engine.record import IterationRecord, Stopwatch
from engine.request import Request
from engine.sampling.sampler import Sampled
from engine.schedule.make import make_scheduler
from engine.schedule.plan import Plan
from engine.schedule.pool import RequestPool
from engine.totals import Totals
from engine.validation import check_request
from schemas.model_limits import ModelLimits
from schemas.sampling import SamplingParams
from schemas.stopping import finish_reason

_log = logging.getLogger(__name__)


class OrcaEngine:
    """Iteration-level scheduling and selective batching (Orca, OSDI'22) over a paged KV cache.

    Not safe for several threads: whoever calls `step` calls all the rest. An engine loaded from a model is ready: its
    self-check and warm-up are over.
    """

    def __init__(self, config: EngineConfig, model: PreTrainedModel) -> None:
        """An engine around a model that is in memory, on the device where it shall compute; see also `load`."""
        self.config = config
        model.eval()
        self.model = model
        self.device: torch.device = model.device
        max_model_len = resolve_max_model_len(config, model.config)
        backend = choose_backend(config.attention_backend, self.device)
        if config.self_check:
            refuse_unsupported(model.config, max_model_len)
            check_small_copy(model, backend, max_model_len)
            check_loaded(model, backend, max_model_len)
        self._runner = ModelRunner(model, backend)
        self.cache = make_cache(self._runner, config, max_model_len)
        self.eos_token_ids = eos_token_ids(model)
        self._executor = Executor(self._runner, self.cache, self.eos_token_ids)
        self._requests = RequestPool()
        self._scheduler = make_scheduler(config, self._requests, self.cache)
        self.limits = ModelLimits(
            vocab_size=model.config.get_text_config().vocab_size,
            max_model_len=max_model_len,
            max_cached_tokens=self.cache.max_tokens,
        )
        self._totals = Totals()
        self.last_iteration: IterationRecord | None = None
        """What the last iteration was made of; None before the first."""

    @classmethod
    def load(cls, config: EngineConfig) -> "OrcaEngine":
        """Load the model named in `config`; UnsupportedModel where it would not be computed right."""
        device = resolve_device(config.device)
        model_config = load_model_config(config)
        refuse_unsupported(model_config, resolve_max_model_len(config, model_config))
        return cls(config, load_model(config, model_config, device))

    @property
    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return len(self._requests) > 0

    @property
    def num_running(self) -> int:
        """Requests in the batch."""
        return len(self._requests.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a place in the batch."""
        return len(self._requests) - len(self._requests.running)

    def submit(self, request: Request) -> None:
        """Take a new request in; InvalidRequest, and no change, where it can never be computed."""
        request.max_tokens = check_request(request, self.limits, self.eos_token_ids, self._requests)
        self._scheduler.add(request)

    def cancel(self, request_id: str) -> bool:
        """End a request without an event: none comes after this returns. False: no such request is under way."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._scheduler.finish(request)
        request.finish(None)
        return True

    def step(self) -> list[TokenEvent]:
        """Compute one iteration; its tokens in order of the batch, [] when there is no work.

        If the iteration fails, it is retried request by request, and those that fail alone end with an error event.
        """
        watch = Stopwatch()
        plan = self._scheduler.select()
        if not plan:
            return []
        watch.select_s = watch.lap()
        return self._collect(self._launch(plan, watch))

    def _launch(self, plan: Plan, watch: Stopwatch) -> Pending:
        try:
            return self._executor.launch(plan, watch)
        except _LOST_DEVICE:
            raise
        except Exception as error:
            _log.warning("an iteration of %d requests failed, retrying one by one: %r", len(plan), error)
        pending = Pending(plan, watch)
        for index, request in enumerate(plan.requests):
            try:
                pending.absorb(self._executor.launch(plan.only(index), watch))
            except _LOST_DEVICE:
                raise
            except Exception as error:
                _log.exception("request %s failed alone", request.id)
                pending.failed[request.id] = f"the model failed on this request: {error!r}"
        return pending

    def _collect(self, pending: Pending) -> list[TokenEvent]:
        """Account for what was launched; its events."""
        failed = [request for request in pending.plan.requests if request.id in pending.failed]
        events = [self._fail(request, pending.failed[request.id]) for request in failed]
        for request, length in pending.prefills:
            self._totals.prefilled(request, length)
            request.chunk_computed(length)
        drawing = list(zip(pending.drawing, pending.sampled, strict=True))
        for request in pending.plan.requests:
            if request.followers and request.num_pending:
                self._scheduler.split(request)
        for request in pending.plan.requests:
            if request.kv is not None:
                self.cache.computed(request.kv, request.tokens, request.num_computed)
        events += [self._accept(request, result) for request, result in drawing]
        self._totals.iterations += 1
        self.last_iteration = record = _record(pending)
        self._scheduler.policy.observe(record)
        return events

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingParams | Sequence[SamplingParams]
    ) -> list[Completion]:
        """Compute all `prompts` and return when the last one is finished, in their order.

        RuntimeError if requests are under way already: their events would be lost.
        """
        return generate(self, prompts, sampling)

    def stats(self) -> EngineStats:
        """A snapshot of what the engine holds and has done.

        Any thread may ask; while a step is under way its numbers may be those of two neighbouring iterations.
        """
        last, totals = self.last_iteration, self._totals
        running = list(self._requests.running)
        held = self._scheduler.policy.memory.slots_held()
        return EngineStats(
            blocks_used=self.cache.blocks_used,
            blocks_total=self.cache.blocks_total,
            blocks_reusable=self.cache.blocks_reusable,
            slots_held=held,
            slots_used=self.cache.slots_filled((each.kv, each.num_computed) for each in running if each.kv is not None),
            running=len(running),
            waiting=self.num_waiting,
            preemptions=self._scheduler.preemptions,
            swaps=self._scheduler.swaps,
            iterations=totals.iterations,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=self._scheduler.cached_tokens,
            queried_tokens=self._scheduler.queried_tokens,
            output_tokens=totals.output_tokens,
            batched_tokens=0 if last is None else last.num_tokens,
        )

    def check_integrity(self) -> None:
        """IntegrityError where pool, scheduler and block tables disagree; for tests, after any call."""
        self._scheduler.check_integrity()

    def _fail(self, request: Request, reason: str) -> TokenEvent:
        self._scheduler.finish(request, discard=True)
        request.finish(None)
        return TokenEvent(request.id, request.num_outputs, None, error=reason)

    def _accept(self, request: Request, result: Sampled) -> TokenEvent:
        """Account for one token, or for its absence."""
        if result.token is None:
            return self._fail(request, "the model gave no finite score for any allowed token")
        request.append(result.token)
        self._totals.output_tokens += 1
        assert request.max_tokens is not None  # resolved at submit
        reason = finish_reason(
            result.token, request.num_outputs, request.sampling, self.eos_token_ids, request.max_tokens
        )
        if reason is not None:
            self._scheduler.finish(request)
            request.finish(reason)
        return TokenEvent(
            request.id,
            request.num_outputs - 1,
            result.token,
            reason,
            logprobs=result.logprobs,
            cached_tokens=request.cached_tokens,
        )


def _record(pending: Pending) -> IterationRecord:
    watch, plan = pending.watch, pending.plan
    return IterationRecord(
        started_s=watch.started_s,
        select_s=watch.select_s,
        build_s=watch.build_s,
        forward_s=watch.forward_s,
        sample_s=watch.sample_s,
        total_s=watch.total_s,
        prefill_tokens=plan.prefill_tokens,
        decode_tokens=plan.num_decodes,
        context_tokens=pending.context_tokens,
        request_ids=[request.id for request in plan.requests],
        prefill_attention=pending.prefill_attention,
    )


_LOST_DEVICE: tuple[type[Exception], ...] = tuple(
    getattr(torch, name) for name in ("AcceleratorError",) if hasattr(torch, name)
)
"""Errors after which the device computes nothing more: they are no single request's fault, and `step` raises them."""
