"""What a worker's engine does, as it is shown to those who watch."""

from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # typing's own will do for pydantic from Python 3.12 on

from orcastream.schemas.codec import Form, decode, encode
from orcastream.schemas.explain import first_complaint

_STRICT: Final = ConfigDict(extra="forbid", allow_inf_nan=False)


@with_config(_STRICT)
class Stay(TypedDict):
    """One request in one place of the batch, from joining to leaving. Times are the server's, in milliseconds."""

    number: int
    """Tells the stays at one worker apart."""
    id: str
    """The request's id; '' for whoever may not know it."""
    choice: int
    tenant: str
    request_class: str
    place: int
    """Its place in the batch, from 0; the lowest that was free."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that the prefix cache saved."""
    output_tokens: int
    continued: bool
    """Whether it goes on from tokens that another attempt wrote: a takeover, if that was another worker's."""
    arrived_ms: float
    joined_ms: float
    first_ms: float | None
    """When its first token came; None: not yet."""
    left_ms: float | None
    left: str | None
    """Why it left: `finished`, `preempted`, `withdrawn` (cancelled, overdue, failed or at a stop string)."""


@with_config(_STRICT)
class Batch(TypedDict):
    """The spans of one flat batch, those that decode first."""

    stays: list[int]
    """Whose each span is: numbers of `WorkerStats.stays`."""
    tokens: list[int]
    decodes: int


@with_config(_STRICT)
class Blocks(TypedDict):
    """The KV blocks of one layer group; `runs` as engine/kv/block_map.py says, by places."""

    window: int | None
    num_blocks: int
    stride: int
    runs: list[int]


@with_config(_STRICT)
class WorkerStats(TypedDict):
    """What one worker's engine did since the entry before, and what it holds now; complete by itself."""

    worker: str
    policy: str
    policies: list[str]
    """Those that it would switch to."""
    sent_ms: float
    num_places: int
    waiting: int
    """Requests that wait in its engine."""
    stays: list[Stay]
    """All that are in the batch, and those that have left since the entry before."""
    batches: list[Batch]
    iterations: list[tuple[float, float, int]]
    """Begin of each, milliseconds after `sent_ms` (negative); how long it took; which of `batches` it computed."""
    blocks: list[Blocks]
    preemptions: int
    """In all."""
    queried_tokens: int
    """Prompt tokens of all that joined, and those of them that the cache had."""
    cached_tokens: int


_ADAPTER: Final = TypeAdapter(WorkerStats)


def encode_stats(stats: WorkerStats) -> bytes:
    """One entry's payload: a msgpack map."""
    body: dict[str, Any] = {**stats}
    return encode(body, Form.MSGPACK)


def decode_stats(payload: bytes) -> WorkerStats:
    """The statistics in a payload; InvalidRequest where it holds something else."""
    try:
        return _ADAPTER.validate_python(decode(payload))
    except ValidationError as error:
        raise first_complaint(error, "stats") from None
