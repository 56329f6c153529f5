"""Validation of submitted requests: whether they can be computed at all."""

from collections.abc import Collection, Container, Sequence
from math import inf, isfinite
from numbers import Integral

from orcastream.engine.request import INTERNAL, Request, RequestState
from orcastream.schemas.candidates import CHANGING_LOGITS
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import CLASSES
from orcastream.schemas.limits import MAX_LOGPROBS, MAX_SEED, MIN_SEED
from orcastream.schemas.model_limits import ModelLimits
from orcastream.schemas.stopping import first_finish


def check_request(request: Request, limits: ModelLimits, eos_token_ids: Collection[int], known: Container[str]) -> int:
    """Return the resolved max_tokens of a valid request. Raises InvalidRequest, which names the invalid field."""
    if request.id in known:
        raise InvalidRequest("id", request.id, "an id that no unfinished request has")
    if INTERNAL in request.id:
        raise InvalidRequest("id", request.id, f"an id without {INTERNAL!r}")
    if request.state is not RequestState.WAITING or request.arrival >= 0:
        raise InvalidRequest("id", request.id, "a request that was never submitted before")
    if not request.prompt_ids:
        raise InvalidRequest("prompt", request.prompt_ids, "at least one token")
    for field, ids in (
        ("prompt", request.prompt_ids),
        ("output_ids", request.output_ids),
        ("stop_token_ids", request.sampling.stop_token_ids),
        ("logit_bias", tuple(token for token, _ in request.sampling.logit_bias)),
    ):
        _check_ids(field, ids, limits.vocab_size)
    for field, number in (("seed", request.seed), ("max_tokens", request.max_tokens)):
        if number is not None and not isinstance(number, Integral):
            raise InvalidRequest(field, number, "an integer, or None")
    if not MIN_SEED <= (request.seed or 0) <= MAX_SEED:
        raise InvalidRequest("seed", request.seed, f"{MIN_SEED} to {MAX_SEED}, or None")
    _check_prompt_logprobs(request)
    if request.max_tokens is not None and request.max_tokens < 1:
        raise InvalidRequest("max_tokens", request.max_tokens, "at least 1")
    max_tokens = limits.fit(
        len(request.prompt_ids), max_tokens=request.max_tokens, min_tokens=request.sampling.min_tokens
    )
    _check_service(request)
    if request.matcher is not None:
        _check_matcher(request, eos_token_ids)
    if request.beam is not None:
        _check_beam(request)
    ended = first_finish(request.output_ids, request.sampling, eos_token_ids, max_tokens)
    if ended is not None:
        raise InvalidRequest("output_ids", request.output_ids, f"an unfinished output (it ended: {ended[1]})")
    return max_tokens


def _check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    allowed = f"token ids from 0 to {vocab_size - 1}"
    if not all(issubclass(kind, Integral) for kind in set(map(type, ids))):
        index, token = next((index, token) for index, token in enumerate(ids) if not isinstance(token, Integral))
        raise InvalidRequest(f"{field}.{index}", token, allowed)
    for token in (min(ids), max(ids)) if ids else ():
        if not 0 <= token < vocab_size:
            raise InvalidRequest(f"{field}.{ids.index(token)}", token, allowed)


def _check_service(request: Request) -> None:
    """Check the fields that policies read."""
    if request.priority_class not in CLASSES:
        raise InvalidRequest("priority_class", request.priority_class, f"one of {', '.join(CLASSES)}")
    for field in ("ttft_slo_ms", "tbt_slo_ms"):
        target = getattr(request, field)
        if target is not None and not 0 < target < inf:
            raise InvalidRequest(field, target, "more than 0 milliseconds, or None")
    if request.deadline_s is not None and not isfinite(request.deadline_s):
        raise InvalidRequest("deadline_s", request.deadline_s, "a finite number of seconds, or None")
    if not 0 <= request.waited_s < inf:
        raise InvalidRequest("waited_s", request.waited_s, "0 seconds or more")


def _check_prompt_logprobs(request: Request) -> None:
    """Check the number of log probabilities, and how many were reported before."""
    count, told = request.prompt_logprobs, request.prompt_told
    if count is not None and not (isinstance(count, Integral) and 0 <= count <= MAX_LOGPROBS):
        raise InvalidRequest("prompt_logprobs", count, f"0 to {MAX_LOGPROBS}, or None")
    if count is not None and request.beam is not None:
        raise InvalidRequest("prompt_logprobs", count, "None with a beam search")
    if not isinstance(told, Integral) or not 0 <= told <= len(request.prompt_ids):
        raise InvalidRequest("prompt_told", told, f"0 to {len(request.prompt_ids)}, the tokens of the prompt")


def _check_matcher(request: Request, eos_token_ids: Collection[int]) -> None:
    """Check that the matcher can end the output, and that nothing else forbids it."""
    if request.beam is not None:
        raise InvalidRequest("matcher", request.matcher, "none with a beam search")
    if not eos_token_ids:
        raise InvalidRequest("matcher", request.matcher, "none: this model has no end-of-sequence token")
    if request.sampling.ignore_eos:
        raise InvalidRequest("ignore_eos", True, "false with a matcher, which says where the output may end")
    if request.sampling.min_tokens:
        raise InvalidRequest("min_tokens", request.sampling.min_tokens, "0 with a matcher")


def _check_beam(request: Request) -> None:
    """Reject parameters of single draws: a beam search is greedy over whole outputs."""
    params = request.sampling
    for field, value, allowed in (
        ("temperature", params.temperature, (0, 1)),
        ("top_k", params.top_k, (0,)),
        ("top_p", params.top_p, (1,)),
        ("min_p", params.min_p, (0,)),
        ("logprobs", params.logprobs, (None,)),
        *((name, getattr(params, name), (unchanged,)) for name, unchanged in CHANGING_LOGITS.items()),
    ):
        if value not in allowed:
            raise InvalidRequest(field, value, f"{' or '.join(map(str, allowed))} with a beam search")
    if request.group is not None:
        raise InvalidRequest("group", request.group, "none: a beam search always computes its prompt once")
    if request.output_ids:
        raise InvalidRequest("output_ids", request.output_ids, "none: a beam search begins with its prompt")
