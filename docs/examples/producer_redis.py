#!/usr/bin/env python3
"""Post one request to Orcastream over Redis and print its tokens as they come: redis-py and msgpack, nothing else.

    python producer_redis.py --url redis://localhost:6379/0 --model orca-demo "[1, 17, 42]"

Prints one line per run of new tokens, `tokens <choice> <position> [ids]`, then `finished {...}` or `error {...}`.
Exit status: 0 finished, 1 ended with an error, 2 no end in time, 3 the log contradicts what was already printed, 4 not
confirmed by Redis.
"""

import argparse
import json
import os
import sys
import time
import uuid
import zlib
from typing import Any

import msgpack
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

GRACE_S = 5  # how much longer than the deadline we wait for the event that says so
CHECK_S = 3  # how often we look whether Redis has lost the request, while nothing comes


class Gap(Exception):
    """Tokens are missing before these."""


class Conflict(Exception):
    """The log disagrees with what we have already printed."""


class Reply:
    """What has been printed so far, per choice. Positions define the reply, not entry ids."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}

    def fold(self, event: dict[str, Any]) -> None:
        """Print what is new in `event`; Gap or Conflict where it does not fit on what is there."""
        for run in event.get("output", []):
            known = self.tokens.setdefault(run["choice"], [])
            position, tokens = run["position"], run["tokens"]
            if position > len(known):
                raise Gap
            overlap = known[position : position + len(tokens)]
            if overlap != tokens[: len(overlap)]:
                raise Conflict(f"choice {run['choice']}: {overlap} became {tokens[: len(overlap)]}")
            fresh = tokens[len(overlap) :]
            if fresh:
                print("tokens", run["choice"], len(known), json.dumps(fresh), flush=True)
                known.extend(fresh)
        for choice, ending in enumerate(event.get("choices", [])):
            counted, known = ending["tokens"], self.tokens.get(choice, [])
            if counted > len(known):
                raise Gap
            if counted < len(known) and "error" not in event:
                raise Conflict(f"choice {choice} ended after {counted} tokens, there are {len(known)}")


class Posted:
    """A request that we have posted, and may have to post again."""

    def __init__(self, connection: Any, args: argparse.Namespace, request_id: str) -> None:
        self.connection, self.id = connection, request_id
        self.keys = f"{args.namespace}:{{{args.model}}}"
        self.stream = f"{self.keys}:requests:{args.priority}"
        lane = zlib.crc32(request_id.encode()) & 0xFF
        self.log = f"{args.namespace}:reply:{{{lane:02x}}}:{request_id}"
        self.fields = entry(connection, args, request_id)
        self.entries = [connection.xadd(self.stream, self.fields)]
        self.checked = time.monotonic()
        self.missed = False

    def look(self) -> None:
        """Post it again where Redis has forgotten it, twice in a row: a worker that had it puts it back itself."""
        if time.monotonic() - self.checked < CHECK_S:
            return
        self.checked = time.monotonic()
        try:
            missed, self.missed = self.missed, self.is_lost()
        except redis.exceptions.NoPermissionError:
            return  # who may not read the queue has its deadline
        if missed and self.missed:
            print("lost by Redis, posted again", file=sys.stderr)
            self.entries.append(self.connection.xadd(self.stream, self.fields))

    def is_lost(self) -> bool:
        """No entry of it waits or runs and, read after that, its log has no end."""
        places = [(self.stream, entry_id) for entry_id in self.entries]
        seen = self.connection.get(f"{self.keys}:seen:{self.id}")
        if seen:
            name, _, entry_id = seen.decode().partition(" ")
            places.append((f"{self.keys}:requests:{name}", entry_id))
        if any(self.connection.xrange(stream, entry_id, entry_id) for stream, entry_id in places):
            return False
        return not any(fields[b"type"] in (b"finished", b"error") for _, fields in self.connection.xrange(self.log))


def entry(connection: Any, args: argparse.Namespace, request_id: str) -> dict[str, Any]:
    """The fields of the request entry; its deadline is on the server's clock."""
    seconds, microseconds = connection.time()
    payload = {"prompt": args.prompt, "max_tokens": args.max_tokens, "temperature": args.temperature, "n": args.n}
    return {
        "id": request_id,
        "v": "1",
        "deadline": int((seconds + args.deadline) * 1000 + microseconds // 1000),
        "payload": msgpack.packb(payload),
    }


def follow(connection: Any, posted: Posted, give_up: float) -> int:
    """Read the reply log until its terminal; returns the exit status."""
    log = posted.log
    reply, cursor, holes = Reply(), b"0-0", set()
    while time.monotonic() < give_up:
        try:
            answer = connection.xread({log: cursor}, count=100, block=1000)
            if not answer:
                posted.look()
        except (redis.ConnectionError, redis.TimeoutError):
            time.sleep(0.2)
            cursor = b"0-0"  # the server may have come back with less than it had: fold from the start
            continue
        for cursor, fields in answer[0][1] if answer else ():
            kind, event = fields[b"type"].decode(), msgpack.unpackb(fields[b"payload"])
            terminal = kind in ("finished", "error")
            try:
                reply.fold(event)
            except Gap:
                if cursor not in holes:
                    holes.add(cursor)
                    cursor = b"0-0"  # something is missing: read from the start again
                    break
                if terminal:
                    raise Conflict("the log ended with tokens missing") from None
                continue  # missing in the log itself: a later epoch writes it again
            if kind == "started":
                print(f"started by {event['worker']}", file=sys.stderr)
            if terminal:
                print(kind, json.dumps({key: event[key] for key in event if key != "output"}), flush=True)
                return int(kind == "error")
    print(f"no end of {log} in time", file=sys.stderr)
    return 2


def main() -> int:
    parser = argparse.ArgumentParser(description="Post one request and print its tokens as they come.")
    parser.add_argument("prompt", type=json.loads, help='token ids, such as "[1, 17, 42]" (orcastream tokenize TEXT)')
    parser.add_argument("--url", default=os.environ.get("REDIS_URL", "redis://localhost:6379/0"))
    parser.add_argument("--model", default=os.environ.get("MODEL", "orca-demo"))
    parser.add_argument("--namespace", default="orca")
    parser.add_argument("--priority", default="normal", choices=["realtime", "high", "normal", "low"])
    parser.add_argument("--id", default=None, help="the request's id; by default a new one")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--n", type=int, default=1, help="choices")
    parser.add_argument("--deadline", type=float, default=60, help="seconds from now")
    args = parser.parse_args()
    request_id = args.id or uuid.uuid4().hex
    # Without retries: a repeated XADD would post the request twice. (Workers drop the second, but why ask.)
    with redis.Redis.from_url(args.url, retry=Retry(NoBackoff(), 0), socket_timeout=5) as connection:
        try:
            posted = Posted(connection, args, request_id)
        except redis.RedisError as error:
            print(f"not confirmed: {error}", file=sys.stderr)
            return 4
        try:
            return follow(connection, posted, time.monotonic() + args.deadline + GRACE_S)
        except Conflict as conflict:
            print(f"reply_conflict: {conflict}", file=sys.stderr)
            return 3


if __name__ == "__main__":
    sys.exit(main())
