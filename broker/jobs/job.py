"""One bulk job in Redis: its lines without results, its results, and the counts of both."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

from redis.exceptions import ResponseError

from orcastream.broker.connection import Connection
from orcastream.broker.errors import WRONG_TYPE, BrokerError, error_code, require
from orcastream.broker.jobs.order import CANCELLING, JobOrder, JobProgress, check_job_id
from orcastream.broker.redis_link import RedisLink
from orcastream.broker.reply_log import REFUSED
from orcastream.broker.resp import fields_of
from orcastream.broker.scripts import (
    ADD_ENTRY,
    CREATE_JOB,
    DROP_RESULTS,
    LEASE_JOB,
    MARK_JOB,
    RECORD_LINE,
    RESULTS_PAGE,
    SEAL_JOB,
    ScriptCall,
)
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import Keys

T = TypeVar("T")

FIRST_RESULT: Final = "0"
"""The cursor before all results."""
_NO_JOB: Final = -1
_PAGE_BYTES: Final = 1024 * 1024
"""A page of results ends once it has this many bytes, so that only its last result can exceed them."""
_LOOK: Final = 200
"""Results that one call of drop_results.lua looks at."""
_COUNTS: Final = ("completed", "failed", "completed_bytes", "failed_bytes")
_FIELDS: Final = frozenset({"order", "total", *_COUNTS})
"""Fields of a job that are not marks."""


class JobLost(BrokerError):
    """Redis has lost the job or some of its lines: it expired, or Redis restarted with less than it had."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the job {job_id!r} is missing or incomplete in Redis")


class JobIncomplete(JobLost):
    """The job is there, but lines without a result, or results, are gone from Redis: it cannot be completed."""


class OtherJob(BrokerError):
    """A job with this id exists, and was ordered for something else."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the job {job_id!r} exists and was submitted with other lines")


class JobLine(NamedTuple):
    """One line, as submitted, and its number: 1, 2, 3 …"""

    number: int
    body: bytes


class JobResult(NamedTuple):
    """One line's result, whether it is an error, and the cursor after it."""

    cursor: str
    number: int
    body: bytes
    failed: bool


class JobSeen(NamedTuple):
    """A job at one moment; `runs`: a runner has the right to run it."""

    order: JobOrder
    progress: JobProgress
    runs: bool


class Held(IntEnum):
    """Whether a runner has the right to run a job, as `lease_job.lua` returns it."""

    BY_ANOTHER = 0
    YES = 1
    CANCELLING = 2
    """The runner has the right, and must end the job without answering more lines."""


class Job:
    """A bulk job. Every call may be repeated: no step takes effect twice, whoever repeats it and however often.

    While Redis is unreachable, a call waits for `patience_s`; then it raises LinkLost, ResponseError or Unwritable.
    """

    def __init__(self, redis: RedisLink, keys: Keys, job_id: str, *, patience_s: float) -> None:
        """Raise InvalidRequest if the id is invalid."""
        self.id = check_job_id(job_id)
        self._redis = redis
        self._keys = keys
        self._patience_s = patience_s

    def request_id(self, number: int, attempt: int = 0) -> str:
        """Return the id of the request that answers a line; each further attempt at a line has its own id."""
        return f"{self.id}.{number}" + (f".{attempt}" if attempt else "")

    async def create(self, order: JobOrder) -> JobOrder:
        """Create the job unless it exists; return the order that applies. Raises OtherJob."""
        key = self._keys.job(self.id)

        async def create(link: Connection) -> JobOrder:
            text = await link.run(CREATE_JOB, [key], [order.as_text(), order.kept_until_ms])
            counts = JobOrder.from_text(text)
            expired = ("ZREMRANGEBYSCORE", self._keys.jobs, "-inf", order.created_ms)
            require(await link.call_many([expired, ("ZADD", self._keys.jobs, counts.kept_until_ms, self.id)]))
            return counts

        counts = await self._patiently(create)
        if counts.source != order.source:
            raise OtherJob(self.id)
        return counts

    async def order(self) -> JobOrder:
        """Return the order that it was created with. Raises JobLost, and as `JobOrder.from_text`."""
        text = await self._patiently(lambda link: link.call("HGET", self._keys.job(self.id), "order"))
        if text is None:
            raise JobLost(self.id)
        return JobOrder.from_text(text)

    async def progress(self) -> JobProgress:
        """Return its progress. Raises JobLost."""
        flat = await self._patiently(lambda link: link.call("HGETALL", self._keys.job(self.id)))
        if not flat:
            raise JobLost(self.id)
        return _progress(fields_of(flat))

    async def check_lines(self) -> None:
        """Raise JobIncomplete if no line is left, although some have no result, or results are gone."""
        lines, results = self._keys.job_lines(self.id), self._keys.job_results(self.id)
        # In this order: of lines that are gone, all results are then counted, and of these, all are then there.
        asked = [("XLEN", lines), ("HGETALL", self._keys.job(self.id)), ("XLEN", results)]

        async def look(link: Connection) -> tuple[int, list[bytes], int]:
            replies = await link.call_many(asked)
            require(replies)
            return replies[0], replies[1], replies[2]

        num_lines, flat, num_results = await self._patiently(look)
        if not flat or num_lines:
            return
        progress = _progress(fields_of(flat))
        if progress.left or num_results < progress.completed + progress.failed:
            raise JobIncomplete(self.id)

    async def last_line(self) -> int:
        """Return the number of the last line added; 0: none. For a job that is not sealed."""
        newest = await self._patiently(
            lambda link: link.call("XREVRANGE", self._keys.job_lines(self.id), "+", "-", "COUNT", 1)
        )
        return _number(newest[0][0]) if newest else 0

    async def add_lines(self, lines: Sequence[JobLine], order: JobOrder) -> None:
        """Add lines in the order of their numbers; an existing one stays as it is."""
        key = self._keys.job_lines(self.id)

        async def add(link: Connection) -> None:
            first = [ADD_ENTRY.call([key], [order.kept_until_ms, *_entry(line)]) for line in lines[:1]]
            require(await link.call_many(first))  # only then the others: at first the server may not know the script
            replies = await link.call_many([("XADD", key, *_entry(line)) for line in lines[1:]])
            require([reply for reply in replies if REFUSED not in str(reply)])

        await self._patiently(add)

    async def seal(self, total: int) -> bool:
        """Mark the lines as complete; False if one is missing and all must be added again. Raises JobLost."""
        keys = [self._keys.job(self.id), self._keys.job_lines(self.id)]
        return bool(await self._run(SEAL_JOB.call(keys, [total])))

    async def lines_after(self, number: int, count: int) -> list[JobLine]:
        """Return at most `count` lines without a result, in order, after line `number`."""
        entries = await self._patiently(
            lambda link: link.call("XRANGE", self._keys.job_lines(self.id), f"{number + 1}-0", "+", "COUNT", count)
        )
        return [JobLine(_number(entry_id), fields_of(flat)[b"line"]) for entry_id, flat in entries]

    async def record(self, number: int, result: bytes, *, failed: bool) -> bool:
        """Store a line's result; False if it already has one. Raises JobLost."""
        keys = [self._keys.job(self.id), self._keys.job_lines(self.id), self._keys.job_results(self.id)]
        return bool(await self._run(RECORD_LINE.call(keys, [number, result, "failed" if failed else "completed"])))

    async def results_after(self, cursor: str, count: int) -> list[JobResult]:
        """Return at most `count` results after `cursor`, in order of arrival; fewer if they are large."""
        begin = "-" if cursor == FIRST_RESULT else f"({cursor}"
        call = RESULTS_PAGE.call([self._keys.job_results(self.id)], [begin, count, _PAGE_BYTES])
        entries = await self._patiently(lambda link: link.run(call.script, call.keys, call.args))
        return [_result(entry) for entry in entries]

    async def drop_results(self, *, failed: bool) -> None:
        """Delete the results that are errors, or those that are none; they stay counted."""
        key, outcome = self._keys.job_results(self.id), "failed" if failed else "completed"

        async def drop(link: Connection) -> None:
            begin = b"-"
            while begin:
                begin = await link.run(DROP_RESULTS, [key], [begin, outcome, _LOOK, _PAGE_BYTES])

        await self._patiently(drop)

    async def mark(self, name: str, value: str | int) -> bool:
        """Record an event of the job; False if it was recorded before. Raises JobLost."""
        if name in _FIELDS:
            raise ValueError(f"name: got {name!r}, allowed: other names than {', '.join(sorted(_FIELDS))}")
        return bool(await self._run(MARK_JOB.call([self._keys.job(self.id)], [name, value])))

    async def cancel(self) -> None:
        """Stop the answering of lines: the current or next runner ends the job. Raises JobLost."""
        await self.mark(CANCELLING, self._redis.now_ms)

    async def lease(self, runner: str, lease_ms: int) -> Held:
        """Take or renew the right to run it for `lease_ms`; 0 releases it. Raises JobLost."""
        keys = [self._keys.job(self.id), self._keys.job_runner(self.id)]
        return Held(await self._run(LEASE_JOB.call(keys, [runner, lease_ms])))

    async def delete(self) -> None:
        """Delete everything of it in Redis; a runner that is still active gets JobLost."""
        kinds = (self._keys.job, self._keys.job_lines, self._keys.job_results, self._keys.job_runner)
        keys = [kind(self.id) for kind in kinds]

        async def delete(link: Connection) -> None:
            await link.call("DEL", *keys)
            await link.call("ZREM", self._keys.jobs, self.id)

        await self._patiently(delete)

    async def _run(self, call: ScriptCall) -> int:
        done = int(await self._patiently(lambda link: link.run(call.script, call.keys, call.args)))
        if done == _NO_JOB:
            raise JobLost(self.id)
        return done

    async def _patiently(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._redis.patiently(action, time.monotonic() + self._patience_s)


async def list_jobs(link: Connection, keys: Keys) -> list[str]:
    """Return the model's jobs, the first to expire first; some may have expired. Raises LinkLost, ResponseError."""
    return [job_id.decode(errors="replace") for job_id in await link.call("ZRANGEBYSCORE", keys.jobs, "-inf", "+inf")]


async def see_jobs(link: Connection, keys: Keys, job_ids: Sequence[str]) -> dict[str, JobSeen | ValueError]:
    """Return the jobs that exist, in one round trip; for one that this version cannot read, the error.

    Raises LinkLost, Unwritable.
    """
    asked = [ask for one in job_ids for ask in (("HGETALL", keys.job(one)), ("EXISTS", keys.job_runner(one)))]
    replies = await link.call_many(asked)
    require([reply for reply in replies if not _is_wrong_type(reply)])
    return {
        job_id: _seen(flat, runs=bool(runs))
        for job_id, flat, runs in zip(job_ids, replies[::2], replies[1::2], strict=True)
        if flat
    }


def _is_wrong_type(reply: Any) -> bool:
    return isinstance(reply, ResponseError) and error_code(reply) == WRONG_TYPE


def _seen(flat: Any, *, runs: bool) -> JobSeen | ValueError:
    if isinstance(flat, ResponseError):
        return InvalidRequest("job", str(flat), "a hash")
    fields = fields_of(flat)
    try:
        return JobSeen(JobOrder.from_text(fields.get(b"order", b"")), _progress(fields), runs)
    except ValueError as error:
        return error


def _progress(fields: Mapping[bytes, bytes]) -> JobProgress:
    texts = {name.decode(): value.decode() for name, value in fields.items()}
    total = texts.get("total")
    completed, failed, completed_bytes, failed_bytes = (int(texts.get(name, 0)) for name in _COUNTS)
    return JobProgress(
        None if total is None else int(total),
        completed,
        failed,
        completed_bytes,
        failed_bytes,
        {name: value for name, value in texts.items() if name not in _FIELDS},
    )


def _entry(line: JobLine) -> tuple[str, str, bytes]:
    return f"{line.number}-0", "line", line.body


def _number(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def _result(entry: Sequence[Any]) -> JobResult:
    entry_id, flat = entry
    fields = fields_of(flat)
    return JobResult(entry_id.decode(), int(fields[b"line"]), fields[b"result"], fields[b"outcome"] == b"failed")
