"""The engine: requests in, one iteration at a time, tokens out."""

import logging
from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel

from engine.attention import choose_backend
from engine.batch.iteration import compute
from engine.config import EngineConfig
from engine.kv.blocks import BlockPool
from engine.kv.size import measure_num_blocks
from engine.model.load import eos_token_ids, load_model, load_model_config, resolve_device, resolve_max_model_len
from engine.model.runner import ModelRunner
from engine.model.self_check import check_model
from engine.model.support import refuse_unsupported
from engine.offline import generate
from engine.output import Completion, EngineStats, TokenEvent
from engine.record import IterationRecord, Stopwatch, count_prefill
from engine.request import Request
from engine.sampling.sampler import Sampled
from engine.schedule.policy import POLICIES
from engine.schedule.pool import RequestPool
from engine.schedule.scheduler import Scheduler, Span
from engine.validation import check_request
from schemas.model_limits import ModelLimits
from schemas.sampling import SamplingParams
from schemas.stopping import finish_reason

_log = logging.getLogger(__name__)


class OrcaEngine:
    """Iteration-level scheduling and selective batching (Orca, OSDI'22) over a paged KV cache.

    Not safe for several threads: whoever calls `step` calls all the rest. An engine that was loaded is ready: its
    self-check and warm-up are over.
    """

    def __init__(self, config: EngineConfig, model: PreTrainedModel) -> None:
        """An engine around a model that is in memory, on the device where it shall compute.

        Only assembled: no self-check runs here, see `load`. Several engines may share one model.
        """
        self.config = config
        model.eval()
        self.model = model
        self.device: torch.device = model.device
        max_model_len = resolve_max_model_len(config, model.config)
        self._runner = ModelRunner(model, choose_backend(config.attention_backend, self.device))
        num_blocks = measure_num_blocks(
            self._runner,
            block_size=config.block_size,
            kv_cache_memory=config.kv_cache_memory,
            token_budget=config.max_num_batched_tokens,
            max_batch_size=config.max_batch_size,
            max_model_len=max_model_len,
        )
        self._runner.allocate(num_blocks, config.block_size)
        self._blocks = BlockPool(num_blocks, config.block_size)
        self._requests = RequestPool()
        self._scheduler = Scheduler(
            self._requests,
            self._blocks,
            POLICIES[config.admission](self._blocks),
            token_budget=config.max_num_batched_tokens,
            max_batch_size=config.max_batch_size,
        )
        self.eos_token_ids = eos_token_ids(model)
        self.limits = ModelLimits(
            vocab_size=model.config.get_text_config().vocab_size,
            max_model_len=max_model_len,
            max_cached_tokens=num_blocks * config.block_size,
        )
        self._iterations = self._prompt_tokens = self._output_tokens = 0
        self.last_iteration: IterationRecord | None = None
        """What the last iteration was made of; None before the first."""

    @classmethod
    def load(cls, config: EngineConfig) -> "OrcaEngine":
        """Load the model named in `config`; UnsupportedModel where it would not be computed right."""
        device = resolve_device(config.device)
        model_config = load_model_config(config)
        max_model_len = resolve_max_model_len(config, model_config)
        refuse_unsupported(model_config, max_model_len)
        backend = choose_backend(config.attention_backend, device)
        model = load_model(config, model_config, device)
        if config.self_check:
            check_model(model, backend, max_model_len)
        return cls(config, model)

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
        return len(self._requests.waiting)

    def submit(self, request: Request) -> None:
        """Take a new request in; InvalidRequest, and no change, where it can never be computed."""
        request.max_tokens = check_request(request, self.limits, self.eos_token_ids, self._requests)
        self._requests.add(request)

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
        prefill_tokens = count_prefill(plan)
        try:
            sampled = compute(self._runner, plan, self.config.block_size, self.eos_token_ids, watch)
            errors: dict[str, str] = {}
        except _LOST_DEVICE:
            raise
        except Exception as error:
            _log.warning("an iteration of %d requests failed, retrying one by one: %r", len(plan), error)
            sampled, errors = self._compute_each(plan, watch)
        events = [event for span in plan for event in self._advance(span, sampled, errors.get(span.request.id))]
        self._iterations += 1
        self.last_iteration = watch.record(plan, prefill_tokens)
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
        last = self.last_iteration
        return EngineStats(
            blocks_used=self._blocks.num_used,
            blocks_total=self._blocks.num_blocks,
            running=self.num_running,
            waiting=self.num_waiting,
            preemptions=self._scheduler.preemptions,
            iterations=self._iterations,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            batched_tokens=0 if last is None else last.num_tokens,
        )

    def check_integrity(self) -> None:
        """IntegrityError where pool, scheduler and block tables disagree; for tests, after any call."""
        self._scheduler.check_integrity()

    def _compute_each(self, plan: list[Span], watch: Stopwatch) -> tuple[dict[str, Sampled], dict[str, str]]:
        """Every span in an iteration of its own: what was sampled, and the errors, by request id."""
        sampled: dict[str, Sampled] = {}
        errors: dict[str, str] = {}
        for span in plan:
            try:
                sampled |= compute(self._runner, [span], self.config.block_size, self.eos_token_ids, watch)
            except _LOST_DEVICE:
                raise
            except Exception as error:
                _log.exception("request %s failed alone", span.request.id)
                errors[span.request.id] = f"the model failed on this request: {error!r}"
        return sampled, errors

    def _advance(self, span: Span, sampled: dict[str, Sampled], error: str | None) -> Iterator[TokenEvent]:
        """Account for one span that was computed, or failed."""
        request = span.request
        result = sampled.get(request.id)
        if error is None and result is not None and result.token is None:
            error = "the model gave no finite score for any allowed token"
        if error is not None:
            self._scheduler.finish(request)
            request.finish(None)
            yield TokenEvent(request.id, request.num_outputs, None, error=error)
            return
        initiation = len(request.prompt_ids) - span.start
        self._prompt_tokens += max(0, min(initiation, span.length))
        request.advance(span.length)
        if result is not None and result.token is not None:
            yield self._emit(request, result.token, result)

    def _emit(self, request: Request, token: int, result: Sampled) -> TokenEvent:
        request.append(token)
        self._output_tokens += 1
        assert request.max_tokens is not None  # resolved at submit
        reason = finish_reason(token, request.num_outputs, request.sampling, self.eos_token_ids, request.max_tokens)
        if reason is not None:
            self._scheduler.finish(request)
            request.finish(reason)
        return TokenEvent(request.id, request.num_outputs - 1, token, reason, logprobs=result.logprobs)


_LOST_DEVICE: tuple[type[Exception], ...] = tuple(
    getattr(torch, name) for name in ("AcceleratorError",) if hasattr(torch, name)
)
"""Errors after which the device computes nothing more: they are no single request's fault, and `step` raises them."""
