"""The stop rule: the same for the engine and for a continuation from a log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.stopping import FinishReason, finish_reason, first_finish

EOS = frozenset({2, 3})
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("token", "num_tokens", "params", "expected"),
    [
        (9, 1, {}, None),
        (2, 1, {}, STOP),
        (3, 1, {}, STOP),
        (2, 1, {"ignore_eos": True}, None),
        (7, 1, {"stop_token_ids": [7]}, STOP),
        (2, 1, {"stop_token_ids": [2], "ignore_eos": True}, STOP),
        (7, 2, {"stop_token_ids": [7], "min_tokens": 3}, None),
        (7, 3, {"stop_token_ids": [7], "min_tokens": 3}, STOP),
        (9, 5, {}, LENGTH),
        (9, 6, {}, LENGTH),
        (2, 5, {}, STOP),
        (2, 5, {"ignore_eos": True}, LENGTH),
    ],
)
def test_finish_reason(token: int, num_tokens: int, params: dict[str, object], expected: FinishReason | None) -> None:
    sampling = SamplingParams.model_validate(params)
    assert finish_reason(token, num_tokens, sampling, EOS, max_tokens=5) is expected


SAMPLINGS = st.builds(
    SamplingParams,
    min_tokens=st.integers(0, 6),
    stop_token_ids=st.lists(st.integers(0, 5), max_size=2).map(tuple),
    ignore_eos=st.booleans(),
)


@given(st.lists(st.integers(0, 9), max_size=12), SAMPLINGS, st.integers(6, 12))
def test_a_log_ends_where_the_engine_would_have_ended_it(
    tokens: list[int], sampling: SamplingParams, max_tokens: int
) -> None:
    """Generated one by one, or read at once from a log that runs past its end: the same position and reason."""
    expected = None
    for count, token in enumerate(tokens, start=1):
        reason = finish_reason(token, count, sampling, EOS, max_tokens)
        if reason is not None:
            expected = (count, reason)
            break
    assert first_finish(tokens, sampling, EOS, max_tokens) == expected
    if expected is None:
        assert len(tokens) < max_tokens
