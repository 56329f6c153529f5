"""A match that ends inside a block: the block is copied, and only the difference is computed."""

import random

from hypothesis import given
from hypothesis import strategies as st

from orcastream.engine import Request
from orcastream.engine.kv.continuations import Continuations
from orcastream.schemas.sampling import SamplingParams
from tests.engine.running import MakeEngine, request, run, tokens


def test_the_longest_common_prefix_wins() -> None:
    edges = Continuations(10)
    edges.add(b"p", b"a", (1, 2, 3, 4))
    edges.add(b"p", b"b", (1, 2, 9, 9))
    edges.add(b"q", b"c", (1, 2, 3, 5))
    assert edges.longest(b"p", (1, 2, 3, 7)) == (b"a", 3)
    assert edges.longest(b"p", (1, 2, 9)) == (b"b", 3)
    assert edges.longest(b"p", (1,)) == (b"b", 1)
    assert edges.longest(b"p", (5, 1)) is None
    assert edges.longest(b"r", (1, 2)) is None
    edges.forget(b"b")
    assert edges.longest(b"p", (1, 2, 9)) == (b"a", 2)


@given(st.lists(st.tuples(st.sampled_from(b"pqr"), st.integers(0, 20)), max_size=60))
def test_the_oldest_edges_are_dropped_first(additions: list[tuple[int, int]]) -> None:
    edges, newest = Continuations(5), dict[bytes, bytes]()
    for parent, number in additions:
        key = bytes([parent, number])
        edges.add(bytes([parent]), key, (number, 7))
        newest.pop(key, None)
        newest[key] = bytes([parent])
    kept = list(newest)[-5:]
    assert len(edges) == len(kept)
    for key in newest:
        found = edges.longest(newest[key], (key[1], 7))
        assert (found == (key, 2)) == (key in kept)


PREFIX = tuple(random.Random(1).randrange(96) for _ in range(38))


def test_a_prompt_that_differs_inside_a_block_computes_only_the_difference(make_engine: MakeEngine) -> None:
    first, second = (*PREFIX, *range(20)), (*PREFIX, *range(40, 55))
    expected = [tokens(run(make_engine(), request("a", prompt))["a"]) for prompt in (first, second)]
    engine = make_engine(block_size=16, num_blocks=32)
    assert tokens(run(engine, request("a", first))["a"]) == expected[0]
    computed = engine.stats().prompt_tokens
    assert tokens(run(engine, request("b", second))["b"]) == expected[1]
    assert engine.stats().prompt_tokens - computed == len(second) - len(PREFIX)
    assert tokens(run(engine, request("c", first))["c"]) == expected[0]
    assert engine.stats().prompt_tokens - computed == len(second) - len(PREFIX) + 1


def test_an_answer_that_ended_inside_a_block_is_continued(make_engine: MakeEngine) -> None:
    engine = make_engine(block_size=16, num_blocks=32)
    answer = tokens(run(engine, request("a", PREFIX[:21], max_tokens=9))["a"])
    following = (*PREFIX[:21], *(token for token in answer if token is not None), 5, 6)
    expected = tokens(run(make_engine(num_blocks=256), request("b", following))["b"])
    computed = engine.stats().prompt_tokens
    assert tokens(run(engine, request("b", following))["b"]) == expected
    assert engine.stats().prompt_tokens - computed == 3  # the last token of the answer was never computed


def test_no_match_across_tenants(make_engine: MakeEngine) -> None:
    engine = make_engine(block_size=16, num_blocks=32)
    run(engine, request("a", PREFIX))
    run(engine, Request("b", (*PREFIX[:35], 1), SamplingParams(max_tokens=4), tenant="other"))
    run(engine, Request("c", (*PREFIX[:35], 1), SamplingParams(max_tokens=4), cache_salt="salt"))
    assert engine.stats().cached_tokens == 0


def test_a_small_cache_under_pressure_gives_the_same_tokens(make_engine: MakeEngine) -> None:
    choose = random.Random(5)
    engine = make_engine(block_size=8, num_blocks=20, max_num_batched_tokens=32, max_batch_size=6)
    plain = make_engine(block_size=8, num_blocks=256, prefix_cache=False)
    for turn in range(12):
        prompts = [(*PREFIX[: choose.randint(1, 38)], *range(choose.randint(0, 9))) for _ in range(4)]
        requests = [[request(f"{turn}-{index}", prompt) for index, prompt in enumerate(prompts)] for _ in range(2)]
        found, expected = run(engine, *requests[0]), run(plain, *requests[1])
        assert {name: tokens(each) for name, each in found.items()} == {
            name: tokens(each) for name, each in expected.items()
        }
    assert engine.stats().cached_tokens > 300
