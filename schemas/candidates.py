"""Which parameters may be combined where a request's choices are selected from candidates."""

from typing import TYPE_CHECKING, Final

from orcastream.schemas.errors import InvalidRequest

if TYPE_CHECKING:
    from orcastream.schemas.request import RequestParameters


CHANGING_LOGITS: Final = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": (),
}
"""Parameters that change logits before a token is chosen, each with its neutral value."""


def check_candidates(payload: "RequestParameters") -> None:
    """Raise InvalidRequest naming the parameter that conflicts with the others."""
    if payload.best_of is not None and payload.best_of < payload.n:
        raise InvalidRequest("best_of", payload.best_of, f"at least n ({payload.n})")
    if payload.max_tokens == 0 and payload.is_ranked:
        raise InvalidRequest("max_tokens", 0, "at least 1 where choices are ranked (best_of above n, use_beam_search)")
    if payload.use_beam_search:
        _check_beam_search(payload)
    else:
        _check_samples(payload)


def _check_beam_search(payload: "RequestParameters") -> None:
    if "temperature" in payload.model_fields_set and payload.temperature != 0:
        raise InvalidRequest("temperature", payload.temperature, "0 or nothing with use_beam_search")
    for name, neutral in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0), ("seed", None)):
        value = getattr(payload, name)
        if value != neutral:
            raise InvalidRequest(name, value, "nothing with use_beam_search, which draws no samples")
    for name, unchanged in CHANGING_LOGITS.items():
        value = getattr(payload, name)
        if value != unchanged:
            raise InvalidRequest(name, value, f"{unchanged} with use_beam_search, which uses the model's own logits")
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(payload, name) is not None:
            allowed = "nothing with use_beam_search, which scores whole outputs"
            raise InvalidRequest(name, getattr(payload, name), allowed)
    if payload.stop:
        allowed = "none with use_beam_search, which compares tokens, not text (stop_token_ids are allowed)"
        raise InvalidRequest("stop", payload.stop, allowed)


def _check_samples(payload: "RequestParameters") -> None:
    for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
        value = getattr(payload, name)
        if value != neutral:
            raise InvalidRequest(name, value, f"{neutral} without use_beam_search")
