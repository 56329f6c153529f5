"""Random schemas, a random model: every answer that ends on its own is valid JSON for its schema."""

import json
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import Phase, given, seed, settings
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from transformers import AutoModelForCausalLM, LlamaConfig

from orcastream import demo
from orcastream.engine import EngineConfig, OrcaEngine, Request
from orcastream.engine.model.quiet import quiet
from orcastream.schemas.constraint import Constraint
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.sampling import SamplingParams
from orcastream.schemas.stopping import FinishReason
from orcastream.text.matcher import Matcher
from orcastream.text.tokenizer import Tokenizer
from orcastream.text.vocabulary import Vocabulary

TOGETHER, ROUNDS = 10, 5
NUMBERS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["integer", "number", ["integer", "null"]]),
        "minimum": st.integers(-50, 0),
        "maximum": st.integers(1, 500),
    },
    optional={"multipleOf": st.sampled_from([1, 2, 5])},
)
TEXTS = st.fixed_dictionaries(
    {"type": st.just("string"), "maxLength": st.integers(4, 8)}, optional={"minLength": st.integers(0, 4)}
)
PATTERNS = st.sampled_from(["^[a-z]{1,4}$", "^(ab|c)d?$", "^[0-9]{2}-[A-F]$", "^é+x{0,2}$", "b"]).map(
    lambda pattern: {"type": "string", "pattern": pattern, "maxLength": 8}
)
FORMATS = st.sampled_from(["date", "date-time", "uuid", "ipv4", "time", "email"]).map(
    lambda name: {"type": "string", "format": name}
)
VALUES = (
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=6) | st.lists(st.integers(0, 9), max_size=2)
)
FIXED = st.builds(lambda value: {"const": value}, VALUES) | st.builds(
    lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=4, unique_by=repr)
)
PLAIN = st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}])
LEAVES = NUMBERS | TEXTS | PATTERNS | FORMATS | FIXED | PLAIN
NAMES = st.sampled_from(["a", "b c", "é", "世", 'q"', "\\", "longer_name"])


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("array"), "maxItems": st.integers(2, 4)},
        optional={
            "items": inner,
            "minItems": st.integers(0, 2),
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
        },
    )


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def required(properties: dict[str, Any]) -> st.SearchStrategy[Any]:
        return st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.just(properties),
                "required": st.lists(st.sampled_from(sorted(properties)), unique=True),
                "additionalProperties": st.just(False),
            }
        )

    return st.dictionaries(NAMES, inner, min_size=1, max_size=4).flatmap(required)


def _unions(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)})


SCHEMAS = st.recursive(LEAVES, lambda inner: _arrays(inner) | _objects(inner) | _unions(inner), max_leaves=8)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(str(demo.MODEL_DIR))


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> OrcaEngine:
    """A random model with the demo model's vocabulary."""
    torch.set_num_threads(1)
    (eos,) = tokenizer.eos_token_ids
    with quiet():
        torch.manual_seed(3)
        config = LlamaConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=512,
            bos_token_id=None,
            eos_token_id=eos,
        )
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    return OrcaEngine(EngineConfig("tiny", max_batch_size=16, kv_cache_memory=1 << 24), model)


@pytest.fixture(scope="module")
def vocabulary(engine: OrcaEngine, tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary.of(tokenizer, engine.limits.vocab_size, engine.eos_token_ids)


def answers(engine: OrcaEngine, matchers: list[Matcher], **params: Any) -> list[tuple[list[int], FinishReason | None]]:
    requests = [
        Request(
            f"r{index}",
            (1, 2, 3 + index),
            SamplingParams(**{"max_tokens": 300, "temperature": (0.0, 1.0)[index % 2], **params}),
            matcher=matcher,
        )
        for index, matcher in enumerate(matchers)
    ]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        assert [event.error for event in engine.step() if event.error] == []
        engine.check_integrity()
    return [(list(request.output_ids), request.finish_reason) for request in requests]


@pytest.mark.parametrize("number", range(4))
def test_every_completed_answer_validates(
    number: int, engine: OrcaEngine, tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    """Four times fifty schemas, ten per batch; only a few cannot be followed exactly."""
    ended = taken = 0

    @seed(number)
    @settings(max_examples=ROUNDS, database=None, phases=[Phase.generate])
    @given(st.lists(SCHEMAS, min_size=TOGETHER, max_size=TOGETHER))
    def together(schemas: list[Any]) -> None:
        nonlocal ended, taken
        kept = [(schema, matcher) for schema in schemas if (matcher := followed(schema, vocabulary)) is not None]
        taken += len(kept)
        finished = answers(engine, [matcher for _, matcher in kept])
        for (schema, _), (ids, reason) in zip(kept, finished, strict=True):
            if reason is not FinishReason.LENGTH:
                ended += 1
                Draft202012Validator(schema).validate(json.loads(tokenizer.decode(ids)))

    together()
    assert taken >= 0.9 * ROUNDS * TOGETHER
    assert ended > taken / 2


def followed(schema: Any, vocabulary: Vocabulary) -> Matcher | None:
    try:
        return Matcher.of(Constraint(json_schema=json.dumps(schema)), vocabulary)
    except InvalidRequest:
        return None
