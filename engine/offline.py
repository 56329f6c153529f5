"""Many prompts at once, without a loop of one's own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.output import Completion
from engine.request import Request
from schemas.sampling import SamplingParams
from schemas.stopping import FinishReason

if TYPE_CHECKING:
    from engine.engine import OrcaEngine


def generate(
    engine: "OrcaEngine", prompts: Sequence[Sequence[int]], sampling: SamplingParams | Sequence[SamplingParams]
) -> list[Completion]:
    """See OrcaEngine.generate. Request i has the id `generate-i`, from which its seed follows if it names none."""
    if engine.has_work:
        raise RuntimeError("generate() needs an engine without requests under way")
    each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
    if len(each) != len(prompts):
        raise ValueError(f"sampling: got {len(each)} items, allowed: one, or as many as prompts ({len(prompts)})")
    requests = [
        Request(f"generate-{index}", tuple(prompt), params)
        for index, (prompt, params) in enumerate(zip(prompts, each, strict=True))
    ]
    submitted: list[Request] = []
    try:
        for request in requests:
            engine.submit(request)
            submitted.append(request)
        return _run(engine, requests)
    except BaseException:
        for request in submitted:
            engine.cancel(request.id)
        raise


def _run(engine: "OrcaEngine", requests: list[Request]) -> list[Completion]:
    logprobs: dict[str, list[Any]] = {request.id: [] for request in requests}
    errors: dict[str, str] = {}
    while engine.has_work:
        for event in engine.step():
            if event.error is not None:
                errors[event.request_id] = event.error
            else:
                logprobs[event.request_id].append(event.logprobs)
    return [_completion(request, errors.get(request.id), logprobs[request.id]) for request in requests]


def _completion(request: Request, error: str | None, logprobs: list[Any]) -> Completion:
    reason: FinishReason | None = request.finish_reason
    asked = request.sampling.logprobs is not None
    return Completion(request.prompt_ids, tuple(request.output_ids), reason, error, tuple(logprobs) if asked else None)
