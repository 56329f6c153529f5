"""No part of a stop string is shown to any reader of the reply log."""

from collections.abc import Callable

from orcastream.schemas.events import Output
from orcastream.schemas.stopping import FinishReason
from orcastream.text.tokenizer import Tokenizer
from tests.redis_server import one_server
from tests.worker.conftest import StartWorker
from tests.worker.producer import Producer

pytestmark = one_server("system")


def test_a_stop_string_never_appears_in_an_earlier_event(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], undisturbed: Callable, tokenizer: Tokenizer
) -> None:
    start_worker()
    whole = tokenizer.decode(undisturbed(count_prompt, max_tokens=60))
    stop = whole[20:26]
    request_id = producer.post(count_prompt, max_tokens=60, stop=[stop])
    published: list[int] = []
    for _, event in producer.events(request_id):
        if isinstance(event, Output):
            published += [token for run in event.runs for token in run.tokens]
            assert len(tokenizer.decode(published)) <= whole.index(stop)
    terminal = producer.read(request_id).terminal
    assert terminal is not None
    assert terminal.endings[0].finish_reason is FinishReason.STOP
    assert terminal.endings[0].text_length == whole.index(stop)
    assert terminal.endings[0].stop == stop


def test_a_stop_string_of_one_choice_is_hidden_while_another_continues(
    producer: Producer, start_worker: StartWorker, count_prompt: list[int], undisturbed: Callable, tokenizer: Tokenizer
) -> None:
    start_worker()
    sampling = {"temperature": 1.8, "seed": 3, "max_tokens": 120, "ignore_eos": True}
    alone = tokenizer.decode(undisturbed(count_prompt, **sampling))
    stop = alone[20:26]
    request_id = producer.post(count_prompt, n=2, stop=[stop], **sampling)
    shown: list[list[int]] = [[], []]
    for _, event in producer.events(request_id):
        if isinstance(event, Output):
            for run in event.runs:
                shown[run.choice] += run.tokens
                assert stop not in tokenizer.decode(shown[run.choice])
    terminal = producer.read(request_id).terminal
    assert terminal is not None
    assert terminal.endings[0].text_length == alone.index(stop)
    assert terminal.endings[1].tokens > terminal.endings[0].tokens, "the other choice continued"
