"""The limits that a served model adds."""

import json
from typing import Any

import pytest

from orcastream.schemas.codec import Form
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.limits import MAX_PROMPT_LOGPROBS
from orcastream.schemas.model_limits import ModelLimits, context_length
from orcastream.schemas.request import GenerationRequest, Payload, parse_payload

LIMITS = ModelLimits(vocab_size=100, max_model_len=32)
CONTEXT = ": this model's maximum context length is 32 tokens"


def payload(num_tokens: int, **rest: Any) -> Payload:
    return parse_payload({"prompt": [1] * num_tokens, **rest})


def test_the_context_bounds_an_unstated_length() -> None:
    assert LIMITS.resolve_max_tokens(payload(10)) == 22
    assert LIMITS.resolve_max_tokens(payload(10, max_tokens=5)) == 5


def test_the_cache_may_hold_less_than_the_context() -> None:
    small = ModelLimits(100, 32, max_cached_tokens=20)
    assert small.max_total_tokens == 20
    assert ModelLimits(100, 32, max_cached_tokens=50).max_total_tokens == 32
    small.check(payload(10, max_tokens=10))
    with pytest.raises(InvalidRequest, match=r"at most 10 after a prompt of 10 tokens: .* 32 tokens \(KV cache 20\)$"):
        small.check(payload(10, max_tokens=11))


@pytest.mark.parametrize(
    ("stated", "asked", "length"),
    [
        ({"max_position_embeddings": 128}, None, 128),
        ({"max_position_embeddings": 128}, 128, 128),
        ({"max_position_embeddings": 128}, 20, 20),
        ({"n_positions": 64, "n_ctx": 99}, None, 64),
        ({"max_position_embeddings": None, "seq_length": 32}, None, 32),
        ({}, 20, 20),
    ],
)
def test_the_context(stated: dict[str, object], asked: int | None, length: int) -> None:
    assert context_length(stated.get, asked) == length


def test_the_context_never_exceeds_the_stated_one() -> None:
    stated: dict[str, object] = {"max_position_embeddings": 128}
    with pytest.raises(ValueError, match=r"^max_model_len: got 129, allowed: at most 128, the model's own limit$"):
        context_length(stated.get, 129)
    stated.clear()
    with pytest.raises(ValueError, match=r"states no context length.*; set max_model_len"):
        context_length(stated.get, None)


@pytest.mark.parametrize(
    "accepted",
    [
        payload(31),
        payload(10, max_tokens=22),
        payload(10, min_tokens=22),
        parse_payload({"prompt": [0, 99], "stop_token_ids": [99]}),
    ],
)
def test_accepted(accepted: Payload) -> None:
    LIMITS.check(accepted)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (payload(32), "prompt: got '32 tokens', allowed: at most 31 tokens" + CONTEXT),
        (payload(10, max_tokens=23), "max_tokens: got 23, allowed: at most 22 after a prompt of 10 tokens" + CONTEXT),
        (payload(10, min_tokens=23), "min_tokens: got 23, allowed: at most 22 after a prompt of 10 tokens" + CONTEXT),
        (
            parse_payload({"prompt": [1, 100, 5]}),
            "prompt.1: got 100, allowed: token ids below the vocabulary size 100",
        ),
        (
            parse_payload({"prompt": [1], "stop_token_ids": [5, 4_294_967_295]}),
            "stop_token_ids.1: got 4294967295, allowed: token ids below the vocabulary size 100",
        ),
    ],
)
def test_refused(refused: Payload, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LIMITS.check(refused)
    assert str(caught.value) == message


def test_no_parameters_but_a_constraint_make_a_payload_too_large() -> None:
    """Written in the longest way, as JSON with every character escaped."""
    wide = "\N{WHALE}"
    numbers = dict.fromkeys(("temperature", "top_p", "min_p"), 0.12345678901234567)
    numbers |= {"repetition_penalty": 9.123456789012345, "presence_penalty": -1.1234567890123456}
    numbers |= {"frequency_penalty": -1.1234567890123456, "ttft_slo_ms": 1234567.123456789, "top_k": 1_000_000}
    numbers |= {"tbt_slo_ms": 1234567.123456789, "seed": -(2**63), "max_tokens": 1_000_000, "min_tokens": 1_000_000}
    numbers |= {"n": 16, "best_of": 16, "logprobs": 20, "prompt_logprobs": 20}
    texts = {"tenant": "a" * 128, "adapter": "a" * 128, "cache_salt": wide * 128, "answer_format": "a" * 64}
    lists = {
        "stop": [wide * 256] * 16,
        "stop_token_ids": [2**32 - 1] * 64,
        "logit_bias": [[2**32 - 1 - index, -99.99999999999999] for index in range(300)],
    }
    body = {"prompt": [2**32 - 1], **numbers, **texts, **lists, "on_disconnect": "continue", "ignore_eos": True}
    parse_payload(body)
    assert len(json.dumps(body)) <= ModelLimits(2**32, 2).max_payload_bytes


@pytest.mark.parametrize("form", Form)
def test_no_prompt_that_fits_makes_a_payload_too_large(form: Form) -> None:
    limits = ModelLimits(2**32, 50_000)
    body = parse_payload(
        {"prompt": [2**32 - 1] * 49_999, "stop": ["\x00" * 256] * 16, "stop_token_ids": [2**32 - 1] * 64}
    )
    request = GenerationRequest("x", body, 1, form=form)
    raw = request.fields()["payload"]
    assert len(raw) <= limits.max_payload_bytes
    fields = {b"id": b"x", b"v": b"1", b"deadline": b"1", b"payload": b" " * (limits.max_payload_bytes + 1)}
    with pytest.raises(InvalidRequest, match=f"^payload: got '{limits.max_payload_bytes + 1} bytes', allowed: at most"):
        GenerationRequest.from_fields(
            fields, stream_class="normal", now_ms=0, max_payload_bytes=limits.max_payload_bytes
        )


def test_prompt_log_probabilities_are_bounded_by_the_reply_size() -> None:
    limits = ModelLimits(vocab_size=100, max_model_len=200_000)
    limits.check(payload(MAX_PROMPT_LOGPROBS // 2, prompt_logprobs=1))
    limits.check(payload(MAX_PROMPT_LOGPROBS, prompt_logprobs=0))
    with pytest.raises(InvalidRequest, match=r"^prompt_logprobs: got 5, allowed: at most 1 with a prompt of 65536 tok"):
        limits.check(payload(MAX_PROMPT_LOGPROBS // 2, prompt_logprobs=5))
    with pytest.raises(InvalidRequest, match=r"^prompt_logprobs: got 0, allowed: null with a prompt of 131073 tokens$"):
        limits.check(payload(MAX_PROMPT_LOGPROBS + 1, prompt_logprobs=0))
