"""Offline generation: compute many prompts at once without writing a step loop."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orcastream.engine.beam import Beam
from orcastream.engine.output import Completion, TokenEvent
from orcastream.engine.request import Request
from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.seed import choice_seed, derived_seed

if TYPE_CHECKING:
    from orcastream.engine.engine import OrcaEngine

Prompts = Sequence[Sequence[int]]


def generate(
    engine: "OrcaEngine",
    prompts: Prompts,
    sampling: SamplingParams | Sequence[SamplingParams],
    *,
    n: int = 1,
    beam: Beam | None = None,
) -> list[Completion]:
    """See OrcaEngine.generate. Prompt i has the id `generate-i`, from which its seeds derive if none is given."""
    if engine.has_work:
        raise RuntimeError("generate() needs an engine without requests under way")
    each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
    if len(each) != len(prompts):
        raise ValueError(f"sampling: got {len(each)} items, allowed: one, or as many as prompts ({len(prompts)})")
    if n < 1:
        raise ValueError(f"n: got {n}, allowed: at least 1")
    requests = [
        request
        for index, (prompt, params) in enumerate(zip(prompts, each, strict=True))
        for request in _requests(f"generate-{index}", tuple(prompt), params, n, beam)
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


def _requests(name: str, prompt: tuple[int, ...], params: SamplingParams, n: int, beam: Beam | None) -> list[Request]:
    """Return the requests of one prompt: a beam search, or one request per choice."""
    if beam is not None:
        return [Request(name, prompt, params, beam=beam)]
    if n == 1:
        return [Request(name, prompt, params)]
    seed = derived_seed(name) if params.seed is None else params.seed
    return [
        Request(f"{name}-{choice}", prompt, params, seed=choice_seed(seed, choice), group=name) for choice in range(n)
    ]


def _run(engine: "OrcaEngine", requests: list[Request]) -> list[Completion]:
    events: dict[tuple[str, int], list[TokenEvent]] = {
        (request.id, choice): [] for request in requests for choice in range(_num_choices(request))
    }
    while engine.has_work:
        for event in engine.step():
            events[event.request_id, event.choice].append(event)
    return [
        _completion(request, events[request.id, choice])
        for request in requests
        for choice in range(_num_choices(request))
    ]


def _num_choices(request: Request) -> int:
    return 1 if request.beam is None else request.beam.num_return


def _completion(request: Request, events: list[TokenEvent]) -> Completion:
    asked = request.sampling.logprobs is not None
    return Completion(
        request.prompt_ids,
        tuple(event.token for event in events if event.token is not None),
        next((event.finish_reason for event in events if event.finish_reason is not None), None),
        next((event.error for event in events if event.error is not None), None),
        tuple(event.logprobs for event in events if event.token is not None) if asked else None,
    )
