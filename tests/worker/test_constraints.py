"""Constrained answers from real workers, including answers that a second worker completes."""

import json
import re
import threading
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from orcastream.schemas.errors import ErrorCode
from orcastream.schemas.stopping import FinishReason
from orcastream.text.tokenizer import Tokenizer
from tests.redis_server import one_server
from tests.worker.conftest import StartWorker
from tests.worker.producer import Producer
from tests.worker.worker_process import PACED, WorkerProcess

pytestmark = one_server("embedded")

ROWS = {
    "x-guidance": {"whitespace_flexible": False},
    "type": "array",
    "minItems": 8,
    "maxItems": 8,
    "items": {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999}, "even": {"type": "boolean"}},
        "required": ["n", "even"],
        "additionalProperties": False,
    },
}
"""An answer of many tokens."""


def following(schema: dict[str, Any], **payload: Any) -> dict[str, Any]:
    return {"constraint": {"json_schema": json.dumps(schema)}, **payload}


@pytest.fixture
def pair(start_worker: StartWorker) -> dict[str, WorkerProcess]:
    workers = [start_worker(patch=PACED), start_worker(patch=PACED)]
    return {worker.wait_serving(): worker for worker in workers}


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 7}], ids=["greedy", "sampled"])
def test_a_killed_workers_answer_continues_to_the_same_end(
    producer: Producer, pair: dict, count_prompt: list[int], tokenizer: Tokenizer, sampling: dict
) -> None:
    asked = following(ROWS, max_tokens=600, **sampling)
    undisturbed = producer.read(producer.post(count_prompt, **asked)).tokens[0]
    fold = producer.read_past_a_kill(producer.post(count_prompt, **asked), pair)
    assert fold.tokens[0] == undisturbed
    assert fold.terminal is not None
    assert fold.terminal.endings[0].finish_reason is FinishReason.STOP
    Draft202012Validator(ROWS).validate(json.loads(tokenizer.decode(fold.tokens[0])))
    producer.wait_empty()


def make_nothing_in_the_engine() -> None:
    """`patch` of a worker whose constraints fail if the engine would have to wait for one."""
    from orcastream.text import matcher

    new_state = matcher._new_state

    def made(*given: Any) -> Any:
        assert not threading.current_thread().name.startswith("masks")
        return new_state(*given)

    matcher._new_state = made


@pytest.mark.parametrize("asked", [{}, {"n": 3}, {"best_of": 4}], ids=str)
def test_the_engine_never_waits_for_a_constraint(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], asked: dict[str, int]
) -> None:
    start_worker(patch=make_nothing_in_the_engine).wait_serving()
    for _ in range(2):
        terminal = producer.read(producer.post(count_prompt, constraint={"choice": ["yes"]}, **asked)).terminal
        assert terminal is not None
        assert terminal.error is None


@pytest.fixture
def worker(start_worker: StartWorker) -> WorkerProcess:
    worker = start_worker()
    worker.wait_serving()
    return worker


@pytest.mark.usefixtures("worker")
def test_choices_follow_constraints_and_other_requests_are_unaffected(
    producer: Producer, count_prompt: list[int], tokenizer: Tokenizer, undisturbed: Any
) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", 3]}}, "required": ["a"]}
    pattern = "(ab|c){3}[0-9]"
    posted = {
        "schema": producer.post(count_prompt, **following(schema, n=3, temperature=1.5, seed=1, max_tokens=200)),
        "regex": producer.post(count_prompt, constraint={"regex": pattern}, logprobs=2),
        "choice": producer.post(count_prompt, constraint={"choice": ["yes", "no"]}, best_of=2, temperature=1.0),
        "grammar": producer.post(count_prompt, constraint={"grammar": 'start: "<" start ">" | "x"'}, max_tokens=60),
        "cut": producer.post(count_prompt, **following(ROWS, max_tokens=9)),
        "plain": producer.post(count_prompt, max_tokens=40),
    }
    folds = {name: producer.read(request_id) for name, request_id in posted.items()}
    texts = {name: [tokenizer.decode(ids) for ids in fold.tokens] for name, fold in folds.items()}
    ended = [ending.finish_reason is FinishReason.STOP for ending in folds["schema"].terminal.endings]
    for text, stopped in zip(texts["schema"], ended, strict=True):
        if stopped:
            Draft202012Validator(schema).validate(json.loads(text))
    assert any(ended)
    assert re.fullmatch(pattern, texts["regex"][0])
    assert texts["choice"][0] in ("yes", "no")
    assert re.fullmatch("<*x?>*", texts["grammar"][0])
    assert folds["cut"].terminal.endings[0].finish_reason is FinishReason.LENGTH
    assert len(folds["cut"].tokens[0]) == 9
    assert folds["plain"].tokens[0] == undisturbed(count_prompt, max_tokens=40)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        ({"json_schema": '{"properties": {"a": {"type": "strin"}}}'}, "constraint.json_schema.properties.a"),
        ({"regex": "(?=a)"}, "constraint.regex"),
        ({"grammar": "start: <|no_such_token|>"}, "constraint.grammar"),
    ],
)
def test_an_unsupported_constraint_is_rejected_with_its_position(
    producer: Producer, count_prompt: list[int], constraint: dict[str, str], field: str
) -> None:
    terminal = producer.read(producer.post(count_prompt, constraint=constraint)).terminal
    assert terminal is not None
    assert (terminal.error, terminal.field_name) == (ErrorCode.INVALID_REQUEST, field)
    producer.wait_empty()  # the dead letter and the removal of the entry are one step, after the terminal event
    (letter,) = producer.redis.xrange(producer.keys.dead)
    assert letter[1][b"reason"] == b"invalid_request"
