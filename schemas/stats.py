"""The statistics of a worker's engine, as sent to observers."""

from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # typing's own will do for pydantic from Python 3.12 on

from orcastream.schemas.codec import Form, decode, encode
from orcastream.schemas.explain import first_complaint

_STRICT: Final = ConfigDict(extra="forbid", allow_inf_nan=False)


@with_config(_STRICT)
class Stay(TypedDict):
    """One request in one slot of the batch, from joining to leaving. Times are the server's, in milliseconds."""

    number: int
    """Distinguishes the stays at one worker."""
    id: str
    """The request's id; '' for observers who may not know it."""
    choice: int
    tenant: str
    request_class: str
    place: int
    """Its slot in the batch, from 0; the lowest that was free."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that the prefix cache saved."""
    output_tokens: int
    continued: bool
    """Whether it continues from tokens of another attempt; a takeover if another worker made that attempt."""
    arrived_ms: float
    joined_ms: float
    first_ms: float | None
    """When its first token arrived; None: not yet."""
    left_ms: float | None
    left: str | None
    """Why it left: `finished`, `preempted`, `withdrawn` (cancelled, overdue, failed or at a stop string)."""


@with_config(_STRICT)
class Batch(TypedDict):
    """The spans of one flat batch, those that decode first."""

    stays: list[int]
    """The stay of each span: numbers of `WorkerStats.stays`."""
    tokens: list[int]
    decodes: int


@with_config(_STRICT)
class Blocks(TypedDict):
    """The KV blocks of one layer group; `runs` as in engine/kv/block_map.py, by slots."""

    window: int | None
    num_blocks: int
    stride: int
    runs: list[int]


@with_config(_STRICT)
class WorkerStats(TypedDict):
    """What one worker's engine did since the previous entry, and what it holds now; each entry is self-contained."""

    worker: str
    policy: str
    policies: list[str]
    """The policies that it can switch to."""
    sent_ms: float
    num_places: int
    waiting: int
    """Requests waiting in its engine."""
    stays: list[Stay]
    """The requests in the batch, and those that left since the previous entry."""
    batches: list[Batch]
    iterations: list[tuple[float, float, int]]
    """Start of each, in milliseconds after `sent_ms` (negative); its duration; which of `batches` it computed."""
    blocks: list[Blocks]
    preemptions: int
    """In total."""
    queried_tokens: int
    """Prompt tokens of all requests that joined; `cached_tokens` are those found in the cache."""
    cached_tokens: int


_ADAPTER: Final = TypeAdapter(WorkerStats)


def encode_stats(stats: WorkerStats) -> bytes:
    """Return one entry's payload: a msgpack map."""
    body: dict[str, Any] = {**stats}
    return encode(body, Form.MSGPACK)


def decode_stats(payload: bytes) -> WorkerStats:
    """Return the statistics in a payload; raise InvalidRequest if it holds anything else."""
    try:
        return _ADAPTER.validate_python(decode(payload))
    except ValidationError as error:
        raise first_complaint(error, "stats") from None
