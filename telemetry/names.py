"""Every name that telemetry uses: spans, their events and attributes, metrics with unit, kind and attributes.

GenAI names follow OpenTelemetry's semantic conventions for generative AI, messaging names those for messaging (both
are in development; when they change, only this module changes). Names outside them begin with `orcastream.`.
docs/telemetry.md lists the same names for readers, and a test compares the two.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PROVIDER: Final = "orcastream"
"""`gen_ai.provider.name`: the conventions have no value for self-hosted servers."""
OPERATION: Final = "text_completion"
"""`gen_ai.operation.name` of a queue entry: tokens in, tokens out, whichever API the client used."""
MESSAGING_SYSTEM: Final = "redis"


class Attribute(StrEnum):
    """Attributes of spans and metrics."""

    OPERATION = "gen_ai.operation.name"
    PROVIDER = "gen_ai.provider.name"
    MODEL = "gen_ai.request.model"
    MAX_TOKENS = "gen_ai.request.max_tokens"
    CHOICES = "gen_ai.request.choice.count"
    FINISH_REASONS = "gen_ai.response.finish_reasons"
    RESPONSE_ID = "gen_ai.response.id"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
    TOKEN_TYPE = "gen_ai.token.type"
    ERROR_TYPE = "error.type"
    MESSAGING_SYSTEM = "messaging.system"
    MESSAGING_OPERATION = "messaging.operation.name"
    MESSAGING_OPERATION_TYPE = "messaging.operation.type"
    DESTINATION = "messaging.destination.template"
    CONSUMER_GROUP = "messaging.consumer.group.name"
    CLIENT_ID = "messaging.client.id"
    MESSAGE_ID = "messaging.message.id"
    HTTP_METHOD = "http.request.method"
    HTTP_ROUTE = "http.route"
    HTTP_STATUS = "http.response.status_code"
    REQUEST_CLASS = "orcastream.request.class"
    TENANT = "orcastream.tenant"
    EPOCH = "orcastream.epoch"
    DELIVERIES = "orcastream.deliveries"
    PREEMPTIONS = "orcastream.preemptions"
    CONTINUED_TOKENS = "orcastream.continued_tokens"
    """Output tokens that the reply log held when this epoch began."""
    WORKER = "orcastream.worker"
    TAKEN_OVER_FROM = "orcastream.taken_over_from"
    """The previous epoch's worker, if a different one."""
    CHUNK_TOKENS = "orcastream.chunk.tokens"
    PREFILL_TOKENS = "orcastream.batch.prefill_tokens"
    DECODE_TOKENS = "orcastream.batch.decode_tokens"
    BATCH_REQUESTS = "orcastream.batch.requests"
    PHASE = "orcastream.phase"
    STATE = "orcastream.state"
    OUTCOME = "orcastream.outcome"
    GAP = "orcastream.gap"


class Span(StrEnum):
    """Span names; messaging spans append the destination's template."""

    SEND = "send"
    PROCESS = "process"
    QUEUE = "queue"
    WAIT = "wait"
    PREFILL = "prefill"
    DECODE = "decode"
    PUBLISH = "publish"
    ITERATION = "iteration"


class SpanEvent(StrEnum):
    """Timed events inside spans."""

    CHUNK = "chunk"
    PREEMPTED = "preempted"
    FIRST_TOKEN = "first token"
    CLIENT_LEFT = "client left"
    EPOCH = "epoch"
    """In the server span: a new epoch writes the reply from here on."""
    PHASE = "phase"
    """In an iteration span: `orcastream.phase` begins."""


class Outcome(StrEnum):
    """`orcastream.outcome` of a `process` span that ended without a terminal event; with one, the attribute is the
    request's finish reason or error code.
    """

    HANDED_OVER = "handed_over"
    """During a drain; another worker continues."""
    LEASE_LOST = "lease_lost"
    PUT_OFF = "put_off"
    """An adapter had to be read or a constraint compiled before the engine could begin; the next epoch continues."""
    FENCED = "fenced"
    """The log has a newer epoch."""
    CONNECTION_LOST = "connection_lost"
    UNWRITABLE = "unwritable"
    """Redis accepted no writes."""
    ENGINE_FAILED = "engine_failed"
    """The whole engine; the process exits."""
    NOT_MINE = "not_mine"
    """The entry was gone or belonged to another worker when this one attached."""
    DUPLICATE = "duplicate"
    """A second entry for the same request."""
    ALREADY_ENDED = "already_ended"
    """The log already had a terminal event; only the cleanup was left."""


class Gap(StrEnum):
    """`orcastream.gap`: what happened between two deliveries of one stream."""

    GENERATION = "generation"
    """Nothing: the same epoch wrote both."""
    TAKEOVER = "takeover"
    RECONNECT = "reconnect"
    """The same worker, with a new epoch."""


class Kind(StrEnum):
    """Kinds of instruments. Observable ones are read when metrics are collected, at no cost to iterations."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "observable gauge"
    TOTAL = "observable counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `services` emit it; `attributes` lists all that it may carry, none of them an id."""

    name: str
    kind: Kind
    unit: str
    description: str
    services: tuple[str, ...]
    attributes: tuple[Attribute, ...] = ()
    buckets: tuple[float, ...] = ()


GATEWAY: Final = "gateway"
WORKER: Final = "worker"

_GEN_AI: Final = (Attribute.OPERATION, Attribute.PROVIDER, Attribute.MODEL, Attribute.REQUEST_CLASS)
_LONG: Final = (20, 40, 80, 160, 320, 640)
"""Buckets beyond those of the conventions, and beyond a request's default timeout (600 s)."""
_SHORT: Final = (0.0005, 0.001, 0.0025, 0.005)
"""Buckets below those of the conventions, for the time between tokens of small models and fast devices."""
_WAIT_BUCKETS: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, *_LONG)
_TOKEN_TIME_BUCKETS: Final = (
    *(*_SHORT, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, *_LONG),
)
_ITERATION_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10, 20, 40, 80),
)
_GAP_BUCKETS: Final = (
    *(*_SHORT, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2.5, 5, 7.5, 10, 15, *_LONG),
)
_REDIS_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
_TOKEN_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

TIME_TO_FIRST_TOKEN: Final = Metric(
    "gen_ai.server.time_to_first_token",
    Kind.HISTOGRAM,
    "s",
    "From the entry's arrival in the queue to its first token in the reply log.",
    (WORKER,),
    _GEN_AI,
    _WAIT_BUCKETS,
)
TIME_PER_OUTPUT_TOKEN: Final = Metric(
    "gen_ai.server.time_per_output_token",
    Kind.HISTOGRAM,
    "s",
    "Mean time per output token after the first, of requests that succeeded.",
    (WORKER,),
    _GEN_AI,
    _TOKEN_TIME_BUCKETS,
)
REQUEST_DURATION: Final = Metric(
    "gen_ai.server.request.duration",
    Kind.HISTOGRAM,
    "s",
    "From the entry's arrival in the queue to its terminal event; error.type if the request failed.",
    (GATEWAY, WORKER),
    (*_GEN_AI, Attribute.ERROR_TYPE),
    tuple(0.01 * 2**power for power in range(17)),
)
REQUESTS_ENDED: Final = Metric(
    "orcastream.requests.ended",
    Kind.TOTAL,
    "{request}",
    "Terminal events written, by outcome: a finish reason or an error code.",
    (GATEWAY, WORKER),
    (Attribute.MODEL, Attribute.REQUEST_CLASS, Attribute.OUTCOME),
)
QUEUE_WAIT: Final = Metric(
    "orcastream.queue.wait.duration",
    Kind.HISTOGRAM,
    "s",
    "From the entry's arrival in the queue to its first claim.",
    (WORKER,),
    (Attribute.MODEL, Attribute.REQUEST_CLASS),
    _WAIT_BUCKETS,
)
WAIT_DURATION: Final = Metric(
    "orcastream.request.wait.duration",
    Kind.HISTOGRAM,
    "s",
    "From the claim to the first chunk: opening an epoch and waiting for room in a batch.",
    (WORKER,),
    (Attribute.MODEL,),
    _WAIT_BUCKETS,
)
PREFILL_DURATION: Final = Metric(
    "orcastream.request.prefill.duration",
    Kind.HISTOGRAM,
    "s",
    "From the first chunk to this worker's first token, like the span prefill.",
    (WORKER,),
    (Attribute.MODEL,),
    _WAIT_BUCKETS,
)
DECODE_DURATION: Final = Metric(
    "orcastream.request.decode.duration",
    Kind.HISTOGRAM,
    "s",
    "From this worker's first token to the terminal event.",
    (WORKER,),
    (Attribute.MODEL,),
    _WAIT_BUCKETS,
)
TOKENS: Final = Metric(
    "orcastream.tokens",
    Kind.TOTAL,
    "{token}",
    "Tokens in (prompt tokens computed) and out (tokens sampled).",
    (WORKER,),
    (Attribute.MODEL, Attribute.TOKEN_TYPE),
)
QUEUE_LENGTH: Final = Metric(
    "orcastream.queue.length",
    Kind.GAUGE,
    "{request}",
    "Entries in the request stream, waiting and running.",
    (GATEWAY,),
    (Attribute.MODEL, Attribute.REQUEST_CLASS),
)
QUEUE_AGE: Final = Metric(
    "orcastream.queue.age",
    Kind.GAUGE,
    "s",
    "Age of the oldest unclaimed entry; 0 if there is none.",
    (GATEWAY,),
    (Attribute.MODEL, Attribute.REQUEST_CLASS),
)
WORKERS: Final = Metric(
    "orcastream.workers",
    Kind.GAUGE,
    "{worker}",
    "Live workers of the model, by reported state.",
    (GATEWAY,),
    (Attribute.MODEL, Attribute.STATE),
)
CLAIMED: Final = Metric(
    "orcastream.worker.requests",
    Kind.GAUGE,
    "{request}",
    "Requests on which this worker holds a lease.",
    (WORKER,),
    (Attribute.MODEL,),
)
CAPACITY: Final = Metric(
    "orcastream.worker.capacity",
    Kind.GAUGE,
    "{request}",
    "Maximum number of requests that this worker holds at once, running or waiting in its engine.",
    (WORKER,),
    (Attribute.MODEL,),
)
ADAPTERS: Final = Metric(
    "orcastream.worker.adapters",
    Kind.GAUGE,
    "{adapter}",
    "LoRA adapters in memory, at most `max_adapters`.",
    (WORKER,),
    (Attribute.MODEL,),
)
ADAPTER_LOADS: Final = Metric(
    "orcastream.worker.adapter_loads",
    Kind.TOTAL,
    "{adapter}",
    "Loads of LoRA adapters from disk.",
    (WORKER,),
    (Attribute.MODEL,),
)
ADAPTER_EVICTIONS: Final = Metric(
    "orcastream.worker.adapter_evictions",
    Kind.TOTAL,
    "{adapter}",
    "LoRA adapters evicted from memory to make room for others.",
    (WORKER,),
    (Attribute.MODEL,),
)
ADAPTER_WAITS: Final = Metric(
    "orcastream.worker.adapter_waits",
    Kind.GAUGE,
    "{request}",
    "Claimed requests waiting for their LoRA adapter, which is being read or finds all slots in use.",
    (WORKER,),
    (Attribute.MODEL,),
)
POOL_REQUESTS: Final = Metric(
    "orcastream.engine.requests",
    Kind.GAUGE,
    "{request}",
    "Requests in the engine's pool: running (in the batch) or waiting.",
    (WORKER,),
    (Attribute.MODEL, Attribute.STATE),
)
KV_BLOCKS: Final = Metric(
    "orcastream.kv_cache.blocks",
    Kind.GAUGE,
    "{block}",
    "Blocks of the KV cache, used or free.",
    (WORKER,),
    (Attribute.MODEL, Attribute.STATE),
)
PREFIX_QUERIES: Final = Metric(
    "orcastream.engine.prefix_cache.queries",
    Kind.TOTAL,
    "{token}",
    "Prompt tokens of all admissions, looked up in the prefix cache.",
    (WORKER,),
    (Attribute.MODEL,),
)
PREFIX_HITS: Final = Metric(
    "orcastream.engine.prefix_cache.hits",
    Kind.TOTAL,
    "{token}",
    "Prompt tokens found in the prefix cache and therefore not computed.",
    (WORKER,),
    (Attribute.MODEL,),
)
SWAPS: Final = Metric(
    "orcastream.engine.swaps",
    Kind.TOTAL,
    "{swap}",
    "Preempted requests whose blocks were swapped to host memory.",
    (WORKER,),
    (Attribute.MODEL,),
)
PREEMPTIONS: Final = Metric(
    "orcastream.engine.preemptions",
    Kind.TOTAL,
    "{preemption}",
    "Requests put back into the pool because blocks ran out.",
    (WORKER,),
    (Attribute.MODEL,),
)
ITERATION_DURATION: Final = Metric(
    "orcastream.engine.iteration.duration",
    Kind.HISTOGRAM,
    "s",
    "One iteration, from select to advance.",
    (WORKER,),
    (Attribute.MODEL,),
    _ITERATION_BUCKETS,
)
ITERATION_TOKENS: Final = Metric(
    "orcastream.engine.iteration.tokens",
    Kind.HISTOGRAM,
    "{token}",
    "Tokens in one flat batch.",
    (WORKER,),
    (Attribute.MODEL,),
    _TOKEN_BUCKETS,
)
PHASE_TIME: Final = Metric(
    "orcastream.engine.phase.time",
    Kind.TOTAL,
    "s",
    "Time spent in each phase of the iterations: select, build, forward, sample, publish.",
    (WORKER,),
    (Attribute.MODEL, Attribute.PHASE),
)
BATCHED_TOKENS: Final = Metric(
    "orcastream.engine.batched_tokens",
    Kind.TOTAL,
    "{token}",
    "Tokens computed, by phase: prefill (including recomputed tokens) or decode.",
    (WORKER,),
    (Attribute.MODEL, Attribute.PHASE),
)
TOKEN_BUDGET: Final = Metric(
    "orcastream.engine.token_budget",
    Kind.GAUGE,
    "{token}",
    "Maximum number of tokens in one iteration.",
    (WORKER,),
    (Attribute.MODEL,),
)
UNPUBLISHED: Final = Metric(
    "orcastream.engine.unpublished",
    Kind.GAUGE,
    "{token}",
    "Tokens delivered by the engine but not yet confirmed by Redis.",
    (WORKER,),
    (Attribute.MODEL,),
)
REDIS_DURATION: Final = Metric(
    "orcastream.redis.roundtrip.duration",
    Kind.HISTOGRAM,
    "s",
    "From a write to Redis to its last reply; blocking reads are excluded.",
    (GATEWAY, WORKER),
    (),
    _REDIS_BUCKETS,
)
REDIS_COMMANDS: Final = Metric(
    "orcastream.redis.commands",
    Kind.TOTAL,
    "{command}",
    "Commands sent to Redis.",
    (GATEWAY, WORKER),
)
CONNECTIONS_LOST: Final = Metric(
    "orcastream.redis.connections.lost",
    Kind.TOTAL,
    "{connection}",
    "Connections to Redis that broke.",
    (GATEWAY, WORKER),
)
REDIS_MEMORY: Final = Metric(
    "orcastream.redis.memory.used",
    Kind.GAUGE,
    "By",
    "Memory used by the Redis server.",
    (GATEWAY,),
)
REDIS_MEMORY_LIMIT: Final = Metric(
    "orcastream.redis.memory.limit",
    Kind.GAUGE,
    "By",
    "The server's maxmemory, beyond which it accepts no writes; absent if there is no limit.",
    (GATEWAY,),
)
REDIS_AOF: Final = Metric(
    "orcastream.redis.aof.writable",
    Kind.GAUGE,
    "{boolean}",
    "1 if the server's last write to its append-only file succeeded, else 0; absent without such a file.",
    (GATEWAY,),
)
REDIS_REPLICAS: Final = Metric(
    "orcastream.redis.replicas",
    Kind.GAUGE,
    "{replica}",
    "Replicas that are connected to the server and in sync with its stream of writes.",
    (GATEWAY,),
)
REDIS_LAG: Final = Metric(
    "orcastream.redis.replication.lag",
    Kind.GAUGE,
    "By",
    "How far the slowest replica lags behind; absent without replicas.",
    (GATEWAY,),
)
REDIS_EVICTED: Final = Metric(
    "orcastream.redis.keys.evicted",
    Kind.TOTAL,
    "{key}",
    "Keys that the server evicted for lack of memory; each may have been a reply.",
    (GATEWAY,),
)
REDIS_REJECTED: Final = Metric(
    "orcastream.redis.connections.rejected",
    Kind.TOTAL,
    "{connection}",
    "Connections that the server refused because maxclients was reached.",
    (GATEWAY,),
)
REDIS_SLOW: Final = Metric(
    "orcastream.redis.commands.slow",
    Kind.TOTAL,
    "{command}",
    "Commands that took longer than slowlog-log-slower-than (default: 10 ms).",
    (GATEWAY,),
)
LEASE_RENEWALS: Final = Metric(
    "orcastream.lease.renewals",
    Kind.COUNTER,
    "{lease}",
    "Leases renewed, or found lost.",
    (WORKER,),
    (Attribute.MODEL, Attribute.OUTCOME),
)
TAKEOVERS: Final = Metric(
    "orcastream.takeovers",
    Kind.COUNTER,
    "{request}",
    "Requests taken over from another worker, including those then set aside.",
    (WORKER,),
    (Attribute.MODEL,),
)
FENCING_REFUSALS: Final = Metric(
    "orcastream.fencing.refusals",
    Kind.COUNTER,
    "{write}",
    "Writes that Redis refused because the log has a newer epoch.",
    (WORKER,),
    (Attribute.MODEL,),
)
DEAD_LETTERS: Final = Metric(
    "orcastream.dead_letters",
    Kind.COUNTER,
    "{request}",
    "Requests set aside: attempts produced no token, the entry is not a valid request, or its log cannot be written.",
    (GATEWAY, WORKER),
    (Attribute.MODEL,),
)
REFUSALS: Final = Metric(
    "orcastream.admission.refusals",
    Kind.COUNTER,
    "{request}",
    "Requests refused, by error code: over HTTP by the gateway, directly from the stream by the worker.",
    (GATEWAY, WORKER),
    (Attribute.MODEL, Attribute.ERROR_TYPE),
)
GATEWAY_FIRST_TOKEN: Final = Metric(
    "orcastream.gateway.time_to_first_token",
    Kind.HISTOGRAM,
    "s",
    "From the HTTP request's arrival to the first tokens of its reply at the gateway: the client's wait.",
    (GATEWAY,),
    (Attribute.MODEL,),
    _WAIT_BUCKETS,
)
TOKEN_GAP: Final = Metric(
    "orcastream.gateway.token.gap",
    Kind.HISTOGRAM,
    "s",
    "Time between two arrivals of tokens of one reply at the gateway, by what happened in between.",
    (GATEWAY,),
    (Attribute.MODEL, Attribute.GAP),
    _GAP_BUCKETS,
)
GATEWAY_ABANDONED: Final = Metric(
    "orcastream.gateway.abandoned.duration",
    Kind.HISTOGRAM,
    "s",
    "How long clients that left before the first token had waited for it.",
    (GATEWAY,),
    (Attribute.MODEL, Attribute.REQUEST_CLASS),
    _WAIT_BUCKETS,
)
BROKEN_REPLIES: Final = Metric(
    "orcastream.gateway.replies.broken",
    Kind.COUNTER,
    "{reply}",
    "Replies that the gateway ended with an error before the request itself ended, by error code.",
    (GATEWAY,),
    (Attribute.MODEL, Attribute.REQUEST_CLASS, Attribute.ERROR_TYPE),
)
GATEWAY_STREAMS: Final = Metric(
    "orcastream.gateway.streams",
    Kind.GAUGE,
    "{request}",
    "Replies that this gateway is reading for clients.",
    (GATEWAY,),
    (Attribute.MODEL,),
)
BATCHES: Final = Metric(
    "orcastream.batches",
    Kind.GAUGE,
    "{batch}",
    "Batches that have not ended, by OpenAI status while a gateway runs them; waiting: no gateway does.",
    (GATEWAY,),
    (Attribute.STATE,),
)
BATCH_AGE: Final = Metric(
    "orcastream.batches.age",
    Kind.GAUGE,
    "s",
    "Age of the oldest batch that has not ended; 0 if there is none. After 24 h its lines get no answers.",
    (GATEWAY,),
)
BATCH_IDLE: Final = Metric(
    "orcastream.batches.idle",
    Kind.GAUGE,
    "s",
    "Longest time that an open batch has made no progress; waits while gateways are full do not count.",
    (GATEWAY,),
)
BATCHES_ENDED: Final = Metric(
    "orcastream.batches.ended",
    Kind.COUNTER,
    "{batch}",
    "Batches that ended, by OpenAI status: completed, failed, expired, cancelled; reported by who ran them.",
    (GATEWAY,),
    (Attribute.OUTCOME,),
)
BATCH_LINES: Final = Metric(
    "orcastream.batches.lines",
    Kind.COUNTER,
    "{line}",
    "Batch lines that got their result, completed or failed; reported by the gateway that ran them.",
    (GATEWAY,),
    (Attribute.OUTCOME,),
)
BATCH_LINES_LEFT: Final = Metric(
    "orcastream.batches.lines.left",
    Kind.GAUGE,
    "{line}",
    "Lines without a result in all open batches whose input was read.",
    (GATEWAY,),
)
HTTP_DURATION: Final = Metric(
    "http.server.request.duration",
    Kind.HISTOGRAM,
    "s",
    "Duration of HTTP requests, including streams to their end; error.type if the status is 500 or higher.",
    (GATEWAY,),
    (Attribute.HTTP_METHOD, Attribute.HTTP_ROUTE, Attribute.HTTP_STATUS, Attribute.ERROR_TYPE),
    _WAIT_BUCKETS,
)

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All metrics, in the order above."""
