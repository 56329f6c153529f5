"""The tokens of one choice: what may be published, where the choice ends, and how it continues from a log."""

from typing import Any

import pytest

from orcastream.schemas.events import Ending, Run
from orcastream.schemas.request import Payload, parse_payload
from orcastream.schemas.stopping import FinishReason
from orcastream.text.tokenizer import Tokenizer
from orcastream.worker.choice import Choice


def payload(**fields: Any) -> Payload:
    return parse_payload({"prompt": [1], **fields})


def choice(tokenizer: Tokenizer | None = None, max_tokens: int = 100, **fields: Any) -> Choice:
    return Choice(0, payload(**fields), max_tokens, tokenizer)


def feed(target: Choice, tokens: list[int]) -> None:
    for token in tokens:
        target.accept(token, None, None)


def test_run_contains_the_tokens_that_the_log_lacks() -> None:
    target = choice()
    feed(target, [7, 8, 9])
    assert target.next_run() == Run(0, 0, (7, 8, 9))
    target.num_logged = 2
    assert target.next_run() == Run(0, 2, (9,))
    target.num_logged = 3
    assert target.next_run() is None


def test_tokens_after_the_end_do_not_count() -> None:
    target = choice()
    target.accept(5, FinishReason.LENGTH, None)
    target.accept(6, None, None)
    assert target.tokens == [5]
    assert target.ending == Ending(FinishReason.LENGTH, 1)


def test_the_stop_token_is_reported() -> None:
    target = choice(stop_token_ids=[5])
    target.accept(5, FinishReason.STOP, None)
    assert target.ending == Ending(FinishReason.STOP, 1, stop=5)


@pytest.mark.parametrize(
    ("logged", "fields", "reason"),
    [
        ([4, 5, 2], {}, FinishReason.STOP),
        ([4, 5], {"stop_token_ids": [5]}, FinishReason.STOP),
        ([4] * 6, {}, FinishReason.LENGTH),
        ([4] * 9, {}, FinishReason.LENGTH),  # by a worker with a longer context
        ([4, 2, 5], {}, FinishReason.STOP),  # by a worker with another EOS
    ],
)
def test_stop_conditions_are_evaluated_on_the_log(logged: list[int], fields: dict, reason: FinishReason) -> None:
    target = choice(max_tokens=6, **fields)
    target.adopt(logged, {2})
    assert target.ending is not None
    assert (target.ending.finish_reason, target.ending.tokens) == (reason, len(logged))
    assert target.next_run() is None


def test_an_unfinished_log_does_not_end_the_choice() -> None:
    target = choice(max_tokens=6)
    target.adopt([4, 5], {2})
    assert target.ending is None
    feed(target, [6])
    assert target.next_run() == Run(0, 2, (6,))


def test_tokens_that_may_belong_to_a_stop_string_are_withheld(tokenizer: Tokenizer) -> None:
    target = choice(tokenizer, stop=["cat-dog"])
    tokens = tokenizer.encode("a cat-dig and a cat-dog runs")
    shown: list[int] = []
    for token in tokens:
        target.accept(token, None, None)
        if (run := target.next_run()) is not None and target.ending is None:
            shown += run.tokens
            target.num_logged += len(run.tokens)
            assert "a cat-dig and a cat-dog".startswith(tokenizer.decode(shown))
            assert "cat-d" not in tokenizer.decode(shown)[-5:]
    assert target.ending is not None
    assert target.ending.text_length == len("a cat-dig and a ")
    assert target.ending.stop == "cat-dog"
    assert tokenizer.decode(target.tokens).endswith("cat-dog")


def test_stop_string_waits_for_the_terminal_event(tokenizer: Tokenizer) -> None:
    target = choice(tokenizer, stop=["stop"])
    tokens = tokenizer.encode("one two stop three")
    feed(target, tokens)
    assert target.ending is not None
    run = target.next_run()  # the request's other choices continue, so this is not a terminal event
    assert run is not None
    assert "one two ".startswith(tokenizer.decode(run.tokens))
    target.num_logged = len(run.tokens)
    last = target.next_run(last=True)
    assert last is not None
    assert run.tokens + last.tokens == tuple(tokens[: target.ending.tokens])


def test_an_early_end_counts_every_token_of_the_log(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("a cat-dig")
    for cut in range(len(tokens) + 1):
        target = choice(tokenizer, stop=["cat-dog"])
        target.adopt(tokens[:cut], {2})  # the writer knew more tokens and no longer withheld any of these
        assert target.abandoned().tokens == cut
        assert target.next_run(last=True) is None


def test_stop_string_is_found_across_the_point_of_takeover(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("one two stop three")
    for cut in range(len(tokens)):
        target = choice(tokenizer, stop=["stop"])
        target.adopt(tokens[:cut], {2})
        feed(target, tokens[cut:])
        assert target.ending is not None
        assert target.ending.text_length == len("one two ")


def test_stop_strings_are_not_searched_in_the_first_min_tokens(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("stop stop")
    half = len(tokenizer.encode("stop"))
    target = choice(tokenizer, stop=["stop"], min_tokens=half)
    feed(target, tokens)
    assert target.ending is not None
    assert target.ending.text_length == len("stop ")


def test_own_tokens_beyond_the_log_extend_it() -> None:
    target = choice()
    feed(target, [1, 2, 3])
    assert target.extends([1, 2])
    assert target.extends([1, 2, 3])
    assert not target.extends([1, 9])
    assert not target.extends([1, 2, 3, 4])


def test_logprobs_travel_with_their_tokens() -> None:
    target = choice(logprobs=0)
    target.accept(7, None, [-0.5, []])
    assert target.next_run() == Run(0, 0, (7,), ([-0.5, []],))
