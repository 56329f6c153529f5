"""Names of all Redis keys. Braces are Redis Cluster hash tags: one slot per lane of a queue, 256 tags for replies."""

from dataclasses import dataclass, replace
from typing import Final, Literal, Self, get_args
from zlib import crc32

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.limits import ID_PATTERN, ID_RULE, MAX_QUEUE_LANES, NAME_PATTERN, NAME_RULE

PriorityClass = Literal["realtime", "high", "normal", "low"]
CLASSES: Final[tuple[str, ...]] = get_args(PriorityClass)
"""Priority classes, most urgent first; each has its own request stream."""

CLASS_WEIGHT: Final = 4.0
"""By default, a request gains precedence this many times as fast as one of the next lower class."""
MAX_CLASS_WEIGHT: Final = 1000
"""Precedences are powers of the weight, which must remain numbers."""

GROUP: Final = "workers"
"""The consumer group of every request stream, created at 0 so that nothing posted before it is skipped."""

DEFAULT_NAMESPACE: Final = "orca"
DEFAULT_TENANT: Final = "default"


def class_weights(class_weight: float) -> dict[str, float]:
    """Return, by class, how fast its requests gain precedence, in units of the lowest class."""
    return {name: class_weight**below for below, name in enumerate(reversed(CLASSES))}


def lane(request_id: str) -> str:
    """Return the two hex digits that spread reply logs over 256 hash tags."""
    return f"{crc32(request_id.encode()) & 0xFF:02x}"


def check_id(request_id: object, field: str = "id") -> str:
    """Return the id; raise InvalidRequest if its form or length is not allowed."""
    if not isinstance(request_id, str) or not ID_PATTERN.fullmatch(request_id):
        raise InvalidRequest(field, request_id, ID_RULE)
    return request_id


def check_name(name: object, field: str) -> str:
    """Return a model or namespace name that may appear in a key; raise InvalidRequest otherwise."""
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        raise InvalidRequest(field, name, NAME_RULE)
    return name


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one served model in one namespace."""

    model: str
    namespace: str = DEFAULT_NAMESPACE
    queue_lanes: int = 1
    """Parts of the queue, each in its own slot; a request's id determines its lane."""
    lane: int = 0
    """The lane of the request streams, dead letters and clients named here; a request's own keys are in its lane."""

    def __post_init__(self) -> None:
        check_name(self.model, "model")
        check_name(self.namespace, "namespace")
        if not 0 <= self.lane < self.queue_lanes <= MAX_QUEUE_LANES:
            raise InvalidRequest("lane", self.lane, f"0 to {self.queue_lanes - 1}, of at most {MAX_QUEUE_LANES} lanes")

    def in_lane(self, lane: int) -> Self:
        """Return the keys of another lane."""
        return self if lane == self.lane else replace(self, lane=lane)

    @property
    def each_lane(self) -> "list[Self]":
        """The keys of all lanes."""
        return [self.in_lane(lane) for lane in range(self.queue_lanes)]

    def lane_of(self, request_id: str) -> int:
        """Return the lane that a request belongs to."""
        return crc32(request_id.encode()) % self.queue_lanes

    def _tag(self, lane: int) -> str:
        return f"{{{self.model}:{lane}}}" if lane else f"{{{self.model}}}"

    def _of_request(self, kind: str, request_id: str) -> str:
        return f"{self.namespace}:{self._tag(self.lane_of(request_id))}:{kind}:{request_id}"

    def requests(self, priority_class: str) -> str:
        """Stream of waiting and running requests of one class."""
        return f"{self.namespace}:{self._tag(self.lane)}:requests:{priority_class}"

    @property
    def requests_template(self) -> str:
        """The request streams of all models and classes under one name, for traces."""
        return f"{self.namespace}:{{model}}:requests:{{class}}"

    def seen(self, request_id: str) -> str:
        """String `class entry-id [outcome]`: the one queue entry that is the request, and how it ended."""
        return self._of_request("seen", request_id)

    def cancel(self, request_id: str) -> str:
        """String: exists once the request is cancelled."""
        return self._of_request("cancel", request_id)

    @property
    def work(self) -> str:
        """Hash, the books: what each accepted entry asks for, and the sums by class and tenant."""
        return f"{self.namespace}:{self._tag(self.lane)}:work"

    @property
    def throughput(self) -> str:
        """Hash: each worker's throughput report, and until when it counts."""
        return f"{self.namespace}:{self._tag(self.lane)}:throughput"

    def rate(self, tenant: str) -> str:
        """String: when a rate-limited tenant's bucket is full again (Unix ms)."""
        return f"{self.namespace}:{self._tag(self.lane)}:rate:{tenant}"

    @property
    def control(self) -> str:
        """Capped stream that wakes up workers; one for all lanes."""
        return f"{self.namespace}:{self._tag(0)}:control"

    @property
    def watched(self) -> str:
        """String that expires: exists while somebody watches the workers; one for all lanes."""
        return f"{self.namespace}:{self._tag(0)}:watched"

    @property
    def stats(self) -> str:
        """Capped stream of engine statistics from the workers, while somebody watches; one for all lanes."""
        return f"{self.namespace}:{self._tag(0)}:stats"

    @property
    def dead(self) -> str:
        """Stream of dead letters."""
        return f"{self.namespace}:{self._tag(self.lane)}:dead"

    def reply(self, request_id: str) -> str:
        """The reply log of one request."""
        return f"{self.namespace}:reply:{{{lane(request_id)}}}:{request_id}"

    @property
    def jobs(self) -> str:
        """Sorted set: the model's bulk jobs, by when they expire (Unix ms)."""
        return f"{self.namespace}:{self._tag(0)}:jobs"

    def job(self, job_id: str) -> str:
        """Hash: one bulk job, its order and its counts."""
        return f"{self.namespace}:job:{{{job_id}}}"

    def job_lines(self, job_id: str) -> str:
        """Stream: the lines of a bulk job that have no result yet, with their numbers as entry ids."""
        return f"{self.job(job_id)}:lines"

    def job_results(self, job_id: str) -> str:
        """Stream: the results of a bulk job, in order of arrival."""
        return f"{self.job(job_id)}:results"

    def job_runner(self, job_id: str) -> str:
        """String that expires: the process that runs a bulk job."""
        return f"{self.job(job_id)}:runner"

    def files(self, tenant: str) -> str:
        """Hash of a tenant's files: id → its metadata as JSON."""
        return f"{self.namespace}:files:{tenant}"

    def file_pieces(self, file_id: str) -> str:
        """Stream: the content of a file in pieces, with their numbers as entry ids."""
        return f"{self.namespace}:file:{file_id}:pieces"

    def batches(self, tenant: str) -> str:
        """Sorted set: the batches of a tenant, by creation time (Unix ms)."""
        return f"{self.namespace}:batches:{tenant}"

    @property
    def open_batches(self) -> str:
        """Hash of the gateways: unfinished batches, id → tenant."""
        return f"{self.namespace}:open-batches"

    @property
    def api_keys(self) -> str:
        """Hash of the API keys of all gateways of the namespace: SHA-256 of a key → its permissions."""
        return f"{self.namespace}:api-keys"

    @property
    def clients(self) -> str:
        """Sorted set of the gateways: requests that depend on clients, by when each client counts as gone (Unix ms)."""
        return f"{self.namespace}:{self._tag(self.lane)}:clients"

    def readers(self, request_id: str) -> str:
        """Hash of the gateways: the gateways that read this reply, and until when their marks count (Unix ms)."""
        return self._of_request("readers", request_id)

    @property
    def nobodys_readers(self) -> str:
        """A key of this lane that never exists: no request has an empty id."""
        return f"{self.namespace}:{self._tag(self.lane)}:readers:"

    def response(self, request_id: str) -> str:
        """String of the gateways: the record stored with a request, for clients that ask for its response."""
        return self._of_request("response", request_id)

    def responses(self, tenant: str) -> str:
        """Sorted set of the gateways: a tenant's stored responses, by when they expire (Unix ms)."""
        return f"{self.namespace}:{self._tag(self.lane)}:responses:{tenant}"

    def response_bytes(self, tenant: str) -> str:
        """Hash of the gateways: the stored bytes of each of a tenant's responses, and of all together."""
        return f"{self.namespace}:{self._tag(self.lane)}:response-bytes:{tenant}"

    def worker(self, worker: str) -> str:
        """Hash that a worker maintains about itself; expires when the worker stops renewing it."""
        return f"{self.namespace}:workers:{self.model}:{worker}"
