"""The engine: takes requests, computes one iteration at a time, and returns tokens."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import cast

import torch
from transformers import PreTrainedModel

from orcastream.engine.attention import choose_backend
from orcastream.engine.batch.executor import Executor
from orcastream.engine.batch.iteration import Pending
from orcastream.engine.batch.launcher import Launcher
from orcastream.engine.batch.prompt_rows import PromptItem
from orcastream.engine.beam import Beam
from orcastream.engine.beams import Beams
from orcastream.engine.config import EngineConfig
from orcastream.engine.kv.block_map import BlockMap
from orcastream.engine.model.adapters.adapters import Adapters
from orcastream.engine.model.cache_setup import make_cache
from orcastream.engine.model.graph_setup import make_graphs
from orcastream.engine.model.load import (
    eos_token_ids,
    load_model_config,
    resolve_device,
    resolve_dtype,
    resolve_max_model_len,
)
from orcastream.engine.model.passes.pack_linears import packed_memory
from orcastream.engine.model.prepare import prepare_model
from orcastream.engine.model.runner import ModelRunner, resolve_cache_dtype
from orcastream.engine.model.support import refuse_unsupported
from orcastream.engine.model.warm_up import warm_up
from orcastream.engine.native.large_pages import into_large_pages
from orcastream.engine.offline import generate
from orcastream.engine.operators import Operators
from orcastream.engine.output import Completion, EngineStats, PromptEvent, TokenEvent
from orcastream.engine.record import IterationRecord
from orcastream.engine.request import Request, RequestState
from orcastream.engine.sampling.filters import DrawParams
from orcastream.engine.sampling.sampler import Sampled
from orcastream.engine.schedule.make import make_scheduler
from orcastream.engine.schedule.policies import POLICIES
from orcastream.engine.schedule.pool import RequestPool
from orcastream.engine.totals import Totals
from orcastream.engine.validation import check_request
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.model_limits import ModelLimits
from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.stopping import FinishReason, finish_reason, stop_ids

_NO_SCORE = "the model gave no finite score for any allowed token"


class OrcaEngine:
    """Iteration-level scheduling and selective batching (Orca, OSDI'22) over a paged KV cache.

    Not thread-safe: the thread that calls `step` makes all other calls, too, unless a method says otherwise. `load`
    returns an engine that is ready: its self-check and warm-up are over.
    """

    def __init__(self, config: EngineConfig, model: PreTrainedModel) -> None:
        """Assemble an engine around a loaded model, on the model's device.

        No self-check runs here; see `load`. Several engines may share one model.
        """
        model.eval()
        self.model = model
        self.device: torch.device = model.device
        self.config = config = config.on(self.device.type)
        max_model_len = resolve_max_model_len(config, model.config)
        cache_dtype = resolve_cache_dtype(config.kv_cache_dtype)
        backend = choose_backend(config.attention_backend, self.device, model.dtype, cache_dtype)
        self._runner = ModelRunner(model, backend, cache_dtype, max_model_len)
        self.adapters = self._runner.adapters = Adapters.of(config, self._runner)
        """Loads LoRA adapters for requests; None if `max_adapters` is 0."""
        self.cache = make_cache(self._runner, config, max_model_len)
        if self.device.type == "cuda":
            warm_up(self._runner, self.cache)
        self._runner.graphs = make_graphs(config, self._runner, self.cache)
        self.eos_token_ids = eos_token_ids(model)
        self.limits = ModelLimits(
            vocab_size=model.config.get_text_config().vocab_size,
            max_model_len=max_model_len,
            max_cached_tokens=self.cache.max_tokens,
        )
        self._overlaps = config.overlap == "on" or (config.overlap == "auto" and self.device.type != "cpu")
        # Planning frees the blocks behind a window, and only named blocks can be reused.
        self._names_early = self.cache.prefix_cache and any(group.window is not None for group in self.cache.groups)
        vocab_size = self.limits.vocab_size
        self._executor = Executor(self._runner, self.cache, vocab_size=vocab_size, overlaps=self._overlaps)
        self._requests = RequestPool()
        self._scheduler = make_scheduler(config, self._requests, self.cache)
        self._launcher = Launcher(self._scheduler, self._executor)
        self._beams = Beams(self._scheduler, self.cache, vocab_size=vocab_size)
        self._pending: Pending | None = None
        self._collected_s = 0.0
        self._totals = Totals()
        self.prompt_events: list[PromptEvent] = []
        """Prompt events of the last `step`; they come before its tokens."""
        self.last_iteration: IterationRecord | None = None
        """The record of the last iteration; None before the first."""
        requests = self._requests  # captured alone, so that the thread does not keep the engine alive
        memory = [*packed_memory(model), *self._runner.cache_memory] if self.device.type == "cpu" else []
        self._large_pages = into_large_pages(memory, is_busy=lambda: len(requests) > 0)

    @classmethod
    def load(cls, config: EngineConfig) -> "OrcaEngine":
        """Load the model named in `config`. Raises UnsupportedModel if the engine would not compute it correctly."""
        device = resolve_device(config.device)
        model_config = load_model_config(config)
        max_model_len = resolve_max_model_len(config, model_config)
        refuse_unsupported(model_config, max_model_len)
        dtype = resolve_dtype(config.dtype, device, model_config)
        backend = choose_backend(config.attention_backend, device, dtype, resolve_cache_dtype(config.kv_cache_dtype))
        model = prepare_model(config, model_config, device, backend, max_model_len)
        del backend  # with its memory, before the rest is measured for the cache
        return cls(config, model)

    def settle(self) -> None:
        """Wait until the engine's memory has its final layout, which takes seconds of idle time; for measurements."""
        if self._large_pages is not None:
            self._large_pages.join()

    @property
    def operators(self) -> Operators:
        """The operators in use: the attention backend, and the compiled operators for this processor."""
        return Operators.of(self.device, self.model.dtype, self._runner.backend.name)

    @property
    def has_work(self) -> bool:
        """Whether a step would compute or return anything."""
        return len(self._requests) > 0 or self._pending is not None

    @property
    def in_flight(self) -> bool:
        """Whether an iteration is launched whose events are still to be returned: only with `overlap`. Any thread may
        read this; during a step it may be False.
        """
        return self._pending is not None

    @property
    def num_running(self) -> int:
        """Requests in the batch."""
        return len(self._requests.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a place in the batch and have none reserved. Any thread may read this."""
        return self._requests.num_waiting

    @property
    def begins_soon(self) -> bool:
        """Whether waiting requests lack nothing but their turn, which comes within about two iterations. Any thread may
        read this; during a step it may be off by an iteration.
        """
        return self._scheduler.begins_soon

    def call_before_forward(self, callback: Callable[[], None]) -> None:
        """Set a `callback` that `step` calls right before each forward pass; it must be quick. From then until the pass
        ends the interpreter is free for other threads.
        """
        self._runner.before_forward = callback

    def submit(self, request: Request) -> None:
        """Add a new request. Raises InvalidRequest, and changes nothing, if it can never be computed."""
        max_tokens = check_request(request, self.limits, self.eos_token_ids, self._requests)
        if request.adapter is not None and (self.adapters is None or request.adapter not in self.adapters):
            raise InvalidRequest("adapter", request.adapter.name, "one that this engine has read")
        request.stop_ids = stop_ids(request.sampling, self.eos_token_ids)
        if request.beam is not None:
            self._beams.check(request, max_tokens)
        request.max_tokens = max_tokens
        request.draws = DrawParams.of(request.sampling, request.seed or 0)
        self._scheduler.add(request)

    def cancel(self, request_id: str) -> bool:
        """End a request; it yields no event after this returns. Return False if there is no such unfinished request."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._end(request)
        return True

    def isolate(self, request_ids: Collection[str]) -> None:
        """Compute only these requests from the next iteration on, while any is unfinished; all others pause.

        Replaces the previous set; () ends the isolation.
        """
        self._scheduler.isolation.request_ids = request_ids

    @property
    def isolates(self) -> bool:
        """Whether an isolated request is unfinished, so that all others pause."""
        return self._scheduler.isolation.active

    def switch_policy(self, name: str) -> None:
        """Let another scheduling policy decide from the next iteration on. Raises ValueError if its name is unknown.

        The switch itself interrupts no request.
        """
        self.config = replace(self.config, policy=name)
        self._scheduler.switch(POLICIES[name](self._scheduler.policy.tools))

    def step(self) -> list[TokenEvent]:
        """Compute one iteration; return its tokens in batch order, or [] if there is no work.

        If the iteration fails, it is retried request by request, and those that fail alone end with an error event.
        With `overlap` the next iteration is planned, laid out and, unless the previous tokens must be known for that,
        launched while the previous one computes; the events are those of the previous one.
        """
        pending, self._pending = self._pending, None
        self.prompt_events = []
        if pending is None:
            prepared = self._launcher.prepare()
            pending = None if prepared is None else self._launcher.launch(prepared)
            if pending is None or not self._overlaps:
                return [] if pending is None else self._collect(pending)
            self._pending = pending
            return []
        if self._names_early:
            self._name_computed(pending.plan.requests)
        ahead = self._launcher.prepare() if self._scheduler.can_plan_ahead() else None
        behind = None if ahead is None else self._launcher.launch_behind(ahead, pending)
        events = self._collect(pending)
        if ahead is not None and behind is None:
            behind = self._launcher.launch(ahead)
        self._pending = behind
        return events

    def finish_launched(self) -> list[TokenEvent]:
        """Wait for the iteration in flight and return its events; begin no other."""
        pending, self._pending = self._pending, None
        self.prompt_events = []
        return [] if pending is None else self._collect(pending)

    def _collect(self, pending: Pending) -> list[TokenEvent]:
        """Wait for a launched iteration, account for it, and return its events."""
        events: list[TokenEvent] = []
        if pending.failed:
            events = [
                self._fail(request, pending.failed[request.id])
                for request in pending.plan.requests
                # a request may have been canceled meanwhile, or have ended with another hypothesis of its search
                if request.id in pending.failed and request.state is not RequestState.FINISHED
            ]
        for chunk, position, items in self._executor.told(pending):
            if (failure := self._tell(chunk.request, position, items)) is not None:
                events.append(failure)
        drawn = self._executor.draw(pending)
        for request, start, length in pending.prefills:
            self._totals.prefilled(request, start, length)
            request.chunk_computed(length)
        for request in [each for each in pending.plan.requests if each.followers and each.num_pending]:
            self._scheduler.split(request)
        if self.cache.prefix_cache:
            self._name_computed(pending.plan.requests)
        # A failed constraint does not taint what was computed: blocks stay reusable.
        broken = [(each, reason) for each, reason in drawn.failed.items() if each.num_pending]
        events += [self._fail(each, reason, discard=False) for each, reason in broken]
        self._accept_best(drawn.takers, drawn.best, events)
        events += [self._accept(request, result) for request, result in drawn.tokens]
        for request, candidates in drawn.candidates:
            if request.state is RequestState.FINISHED:  # another hypothesis of its search failed
                continue
            events += self._beams.advance(request, candidates) if candidates else [self._fail(request, _NO_SCORE)]
        self._totals.iterations += 1
        self._totals.output_tokens += len(events) - sum([event.token is None for event in events])
        now = time.monotonic()
        self.last_iteration = record = pending.record(now - max(pending.watch.started_s, self._collected_s))
        self._collected_s = now
        self._scheduler.policy.observe(record)
        return events

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams],
        *,
        n: int = 1,
        beam_width: int | None = None,
        length_penalty: float = 1.0,
        early_stopping: bool = False,
    ) -> list[Completion]:
        """Compute all `prompts` and return once all are finished: `n` completions per prompt, in order.

        With `beam_width` they are the best hypotheses of a beam search, best first; see Beam. Raises RuntimeError if
        there are unfinished requests: their events would be lost.
        """
        beam = None if beam_width is None else Beam(beam_width, n, length_penalty, early_stopping)
        return generate(self, prompts, sampling, n=n, beam=beam)

    def stats(self) -> EngineStats:
        """Return a snapshot of the engine's gauges and totals.

        Any thread may call this; during a step the numbers may come from two neighboring iterations.
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

    def block_maps(self, places: Iterable[tuple[int, Request]]) -> list[BlockMap]:
        """Return a picture of the KV cache, one map per layer group; `places` gives each request's number in it.

        Any thread may call this; during a step it may mix two neighboring iterations.
        """
        held = [(place, kv) for place, request in places if (kv := request.kv) is not None]
        return [BlockMap.of(group, held) for group in self.cache.groups]

    def check_integrity(self) -> None:
        """Raise IntegrityError if pool, scheduler and block tables disagree; for tests, after any call."""
        self._scheduler.check_integrity()

    def _end(self, request: Request, *, discard: bool = False) -> Request:
        """Remove an unfinished request, with all hypotheses of its search; return the request as submitted."""
        root = request.hypotheses[0] if request.hypotheses else request
        self._beams.end(root)
        self._scheduler.finish(root, discard=discard)
        root.finish(None)
        return root

    def _fail(self, request: Request, reason: str, *, discard: bool = True) -> TokenEvent:
        root = self._end(request, discard=discard)
        return TokenEvent(root.id, root.num_outputs, None, error=reason)

    def _tell(self, request: Request, position: int, items: tuple[PromptItem, ...] | None) -> TokenEvent | None:
        """Report log probabilities of a prompt, each once; return an error event if there are none."""
        if items is None:
            return self._fail(request, "the model gave no finite score for a token of the prompt")
        fresh = items[request.prompt_told - position :]
        if fresh:
            logprobs, ranks = zip(*fresh, strict=True)
            self.prompt_events.append(PromptEvent(request.id, request.prompt_told, logprobs, ranks))
            request.prompt_told += len(fresh)
        return None

    def _accept(self, request: Request, result: Sampled) -> TokenEvent:
        """Account for one token, or for its absence."""
        if result.token is None:
            return self._fail(request, _NO_SCORE)
        request.append(result.token)
        return TokenEvent(
            request.id,
            request.num_outputs - 1,
            result.token,
            self._finish_reason(request, result.token),
            logprobs=result.logprobs,
            cached_tokens=request.cached_tokens,
        )

    def _accept_best(self, requests: list[Request], tokens: list[int | None], events: list[TokenEvent]) -> None:
        """Do as `_accept` for requests that take their likeliest token and ask for nothing else."""
        if None in tokens:
            events += [self._accept(each, Sampled(token)) for each, token in zip(requests, tokens, strict=True)]
            return
        known = cast(list[int], tokens)
        Request.append_each(requests, known)
        for request, token in zip(requests, known, strict=True):
            position = len(request.tokens) - len(request.prompt_ids) - 1
            # Most tokens end nothing: decided here to save a call.
            may_end = token in request.stop_ids or position + 1 >= request.max_tokens  # type: ignore[operator]  # resolved
            reason = self._finish_reason(request, token) if may_end else None
            events.append(TokenEvent(request.id, position, token, reason, None, None, request.cached_tokens))

    def _finish_reason(self, request: Request, token: int) -> FinishReason | None:
        """Return why `request` ends with its last token, `token`, and end it; None if it continues."""
        assert request.max_tokens is not None  # resolved at submit
        num_outputs = request.num_outputs
        reason = finish_reason(token, num_outputs, request.sampling, self.eos_token_ids, request.max_tokens)
        if reason is not None:
            self._scheduler.finish(request)
            request.finish(reason)
        return reason

    def _name_computed(self, requests: Sequence[Request]) -> None:
        """Name the blocks that are full once the launched iterations have run, so that they can be reused."""
        size = self.cache.block_size
        for request in requests:
            kv = request.kv
            if kv is not None and request.num_computed >= (kv.num_named + 1) * size:
                self.cache.computed(kv, request.tokens, min(request.num_computed, len(request.tokens)))
