"""A request has the same parameters over HTTP and over Redis."""

import json
import math
import re
from typing import Any

import pytest

from orcastream.client import AsyncClient
from orcastream.client.body import body_of
from orcastream.client.entry import payload_of
from orcastream.client.request import Asked, Parameters, checked_parameters
from orcastream.gateway.openai.endpoints import COMPLETIONS
from orcastream.gateway.openai.request import parse_body
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.request import Payload

GIVEN: dict[str, Any] = {
    "max_tokens": 9,
    "temperature": 0.5,
    "top_k": 4,
    "top_p": 0.9,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "repetition_penalty": 1.1,
    "logit_bias": {5: -100, 7: 2.5},
    "logprobs": 3,
    "prompt_logprobs": 2,
    "constraint": {"json_schema": {"type": "object"}},
    "seed": 7,
    "stop": "END",
    "stop_token_ids": [3],
    "n": 2,
    "cache_salt": "blue",
    "ttft_slo_ms": 300,
    "tbt_slo_ms": 40,
}
NOT_WITH_A_CONSTRAINT: dict[str, Any] = {"min_tokens": 1, "ignore_eos": True}


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "redis://127.0.0.1:1"])
@pytest.mark.parametrize(
    ("prompt", "arguments", "complaint"),
    [
        (None, {}, "prompt: got None, allowed: text, a list of token ids, or of messages"),
        (b"bytes", {}, "prompt: got b'bytes', allowed: text, "),
        (iter([1, 2]), {}, "prompt: got <list_iterator"),
        ("x", {"priority": "urgent"}, "priority: got 'urgent', allowed: realtime, high, normal, low"),
        ("x", {"timeout_s": 0}, "timeout_s: got 0, allowed: a finite number above 0"),
        ("x", {"timeout_s": math.inf}, "timeout_s: got inf, "),
        ("x", {"timeout_s": math.nan}, "timeout_s: got nan, "),
        ("x", {"timeout_s": "5"}, "timeout_s: got '5', "),
        ("x", {"timeout_s": None}, "timeout_s: got None, "),
        ("x", {"timeout_s": True}, "timeout_s: got True, "),
    ],
)
def test_an_unknown_argument_is_refused_at_once(url: str, prompt: Any, arguments: Any, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(complaint)):
        AsyncClient(url, "tiny").generate(prompt, **arguments)


def test_all_parameters_both_ways() -> None:
    others = {"best_of", "use_beam_search", "length_penalty", "early_stopping", "on_disconnect", "adapter"}
    assert GIVEN.keys() | NOT_WITH_A_CONSTRAINT.keys() == Parameters.__annotations__.keys() - others
    free = {name: value for name, value in GIVEN.items() if name != "constraint"} | NOT_WITH_A_CONSTRAINT
    for given in (GIVEN, free):
        _asks_for_the_same(Asked("cmpl-1", [5, 6], checked_parameters(given), "normal", 60.0, False))


def _asks_for_the_same(asked: Asked) -> None:
    over_redis = payload_of(asked, "default", None)
    body = parse_body(COMPLETIONS, json.dumps(body_of(asked, "tiny")).encode(), 1000)
    over_http = Payload.of([5, 6], body.parameters.model_copy(update={"on_disconnect": "continue"}))
    assert over_http == over_redis


@pytest.mark.parametrize(
    ("constraint", "outputs"),
    [
        ({"json_schema": '{"type": "null"}'}, {"json": '{"type": "null"}'}),
        ({"regex": "[ab]+"}, {"regex": "[ab]+"}),
        ({"choice": ("yes", "no")}, {"choice": ["yes", "no"]}),
        ({"grammar": 'start: "x"'}, {"grammar": 'start: "x"'}),
    ],
)
def test_constraints_of_every_kind(constraint: dict[str, Any], outputs: dict[str, Any]) -> None:
    asked = Asked("cmpl-1", [5, 6], checked_parameters({"constraint": constraint}), "normal", 60.0, False)
    assert body_of(asked, "tiny")["structured_outputs"] == outputs
    _asks_for_the_same(asked)


@pytest.mark.parametrize("constraint", [{}, {"json": "{}"}, {"regex": "a", "choice": ["a"]}, "[ab]+"])
def test_only_one_constraint_is_allowed(constraint: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"constraint: got .*allowed: exactly one of json_schema, regex"):
        checked_parameters({"constraint": constraint})


def test_an_adapter_is_a_model_to_gateways() -> None:
    asked = Asked("cmpl-1", [5, 6], {"adapter": "sums"}, "normal", 60.0, False)
    assert payload_of(asked, "default", None).adapter == "sums"
    body = body_of(asked, "tiny")
    assert body["model"] == "sums"
    assert "adapter" not in body
