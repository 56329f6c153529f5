"""Which parameters go together where the choices of a request are selected among candidates."""

from typing import TYPE_CHECKING

from schemas.errors import InvalidRequest

if TYPE_CHECKING:
    from schemas.request import Payload


def check_candidates(payload: "Payload") -> None:
    """InvalidRequest naming the parameter that does not go with the others."""
    if payload.best_of is not None and payload.best_of < payload.n:
        raise InvalidRequest("best_of", payload.best_of, f"at least n ({payload.n})")
    if payload.use_beam_search:
        _check_beam_search(payload)
    else:
        _check_samples(payload)


def _check_beam_search(payload: "Payload") -> None:
    if "temperature" in payload.model_fields_set and payload.temperature != 0:
        raise InvalidRequest("temperature", payload.temperature, "0 or nothing with use_beam_search")
    for name, neutral in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0), ("seed", None)):
        value = getattr(payload, name)
        if value != neutral:
            raise InvalidRequest(name, value, "nothing with use_beam_search, which draws no samples")
    if payload.logprobs is not None:
        raise InvalidRequest("logprobs", payload.logprobs, "nothing with use_beam_search, which scores whole outputs")
    if payload.stop:
        allowed = "none with use_beam_search, which compares tokens and no text (stop_token_ids: yes)"
        raise InvalidRequest("stop", payload.stop, allowed)


def _check_samples(payload: "Payload") -> None:
    for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
        value = getattr(payload, name)
        if value != neutral:
            raise InvalidRequest(name, value, f"{neutral} without use_beam_search")
