"""Requests that share a small batch, and the record of each iteration."""

import math
from dataclasses import dataclass
from functools import cached_property

from orcastream.bench.walk.noting_backend import NotingBackend
from orcastream.demo import MODEL_DIR
from orcastream.engine import EngineConfig, OrcaEngine
from orcastream.engine.output import TokenEvent
from orcastream.engine.record import IterationRecord
from orcastream.engine.request import Request
from orcastream.schemas.sampling import SamplingParams
from orcastream.text.tokenizer import Tokenizer

MAX_BATCH_SIZE = 3
MAX_TOKENS = 32
BLOCK_SIZE = 16
_NUM_BLOCKS = 64
_LONGEST_ANSWER = 64
_LONG = (
    "What is Orcastream?",
    "Orcastream is continuous-batching inference for language models, built as a service around a message queue.",
)
LIKELIEST = 3


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: the turns of a chat, and the iteration before which it arrives."""

    name: str
    turns: tuple[str, ...]
    arrives: int = 1

    @property
    def messages(self) -> list[dict[str, str]]:
        """Return the turns in the format of chat templates."""
        return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(self.turns)]


SCENE = (
    Asked("A", ("Count from 3 to 9",)),
    Asked("B", ("What is 3 + 4?",)),
    Asked("C", ("Spell orca",), arrives=2),
    Asked("D", (*_LONG, "Count from 20 to 23"), arrives=2),
    Asked("E", ("What day comes after Tuesday?",), arrives=3),
)


@dataclass(frozen=True, slots=True)
class Span:
    """One request's part of an iteration: tokens `first` … `first + length - 1` of the stream, of a context of
    `context` tokens in the blocks `table`; `token` is the result, `None` while the prompt is incomplete."""

    name: str
    first: int
    length: int
    context: int
    table: list[int]
    decodes: bool
    token: TokenEvent | None

    @property
    def pairs(self) -> int:
        """Number of pairs of a query and a key that it attends to."""
        return sum(range(self.context - self.length + 1, self.context + 1))


@dataclass(frozen=True, slots=True)
class Iteration:
    """Number from 1; the stream's ids, positions and slots; its spans in order; waiting requests; times of phases."""

    number: int
    ids: list[int]
    positions: list[int]
    slots: list[int]
    spans: list[Span]
    waiting: list[str]
    record: IterationRecord


class Walk:
    """The scene run to its end under a policy."""

    def __init__(self, policy: str) -> None:
        self.tokenizer = Tokenizer.load(str(MODEL_DIR))
        self.engine = OrcaEngine.load(_config(policy))
        self.prompts = {asked.name: self.tokenizer.chat(asked.messages) for asked in SCENE}
        self._requests: dict[str, Request] = {}
        self.iterations = self._run()

    @cached_property
    def answers(self) -> dict[str, str]:
        """Return the generated answer of each request."""
        return {
            name: self.tokenizer.decode(request.tokens[len(request.prompt_ids) :])
            for name, request in self._requests.items()
        }

    def _run(self) -> list[Iteration]:
        done: list[Iteration] = []
        while len(self._requests) < len(SCENE) or self.engine.has_work:
            for asked in SCENE:
                if asked.arrives == len(done) + 1:
                    self._submit(asked.name)
            before = {name: request.num_outputs for name, request in self._requests.items()}
            done.append(self._noted(len(done) + 1, self.engine.step(), before))
        return done

    def _submit(self, name: str) -> None:
        sampling = SamplingParams(temperature=0, logprobs=LIKELIEST, max_tokens=_LONGEST_ANSWER)
        request = self._requests[name] = Request(name, tuple(self.prompts[name]), sampling)
        self.engine.submit(request)

    def _noted(self, number: int, events: list[TokenEvent], before: dict[str, int]) -> Iteration:
        batch, record = NotingBackend.last, self.engine.last_iteration
        assert batch is not None
        assert record is not None
        tokens = {event.request_id: event for event in events}
        spans = []
        for place, index in enumerate(batch.order):
            name, context = record.request_ids[index], int(batch.contexts[place])
            first, end = int(batch.offsets[place]), int(batch.offsets[place + 1])
            table = batch.groups[0].tables[place].tolist()[: math.ceil(context / BLOCK_SIZE)]
            spans.append(Span(name, first, end - first, context, table, before[name] > 0, tokens.get(name)))
        here = {span.name for span in spans}
        left = {name for name, request in self._requests.items() if request.finish_reason}
        waiting = [name for name in self._requests if name not in here | left]
        ids, positions = batch.input_ids[0].tolist(), batch.position_ids[0].tolist()
        return Iteration(number, ids, positions, batch.groups[0].slots.tolist(), spans, waiting, record)


def _config(policy: str) -> EngineConfig:
    """Return settings for a batch small enough for a page. Requests share nothing, because that would hide work."""
    return EngineConfig(
        model=str(MODEL_DIR),
        dtype="float32",
        device="cpu",
        policy=policy,
        max_batch_size=MAX_BATCH_SIZE,
        max_num_batched_tokens=MAX_TOKENS,
        block_size=BLOCK_SIZE,
        kv_cache_memory=_NUM_BLOCKS * BLOCK_SIZE * 5 * 2 * 2 * 64 * 4,
        prefix_cache=False,
        attention_backend="noting",
    )
