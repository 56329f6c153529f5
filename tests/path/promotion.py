"""How long a stream pauses while a cluster replaces a dead master: `python -m tests.path.promotion --rounds 5`.

Three masters and three replicas, a gateway and a worker, real processes; the master of the queue, or of the reply log,
is killed permanently in mid-answer. Exit status 1: an answer differed from the undisturbed one.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orcastream.schemas.keys import Keys
from tests.path.cluster_site import ANSWER, ClusterSite
from tests.path.stream import Stream
from tests.redis_server import system_binary
from tests.worker.worker_process import MODEL

_AT_CHUNK = 30
_NODE_TIMEOUT_MS = 1000
KEYS: dict[str, Callable[[Stream], str]] = {
    "queue": lambda _: Keys(MODEL).requests("normal"),
    "reply log": lambda stream: Keys(MODEL).reply(stream.request_id),
}


class TimedStream(Stream):
    """Records when chunks arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def _chunk(self, chunk: dict[str, Any]) -> None:
        super()._chunk(chunk)
        self.times.append(time.monotonic())

    @property
    def longest_pause_s(self) -> float:
        """Return the longest pause between two chunks."""
        return max(b - a for a, b in zip(self.times, self.times[1:], strict=False))


def pause_s(key_of: Callable[[Stream], str], directory: Path) -> float:
    """Return the longest pause of one answer whose node dies midway. Raises RuntimeError if the answer is wrong."""
    binary = system_binary()
    if binary is None:
        raise RuntimeError("there is no redis-server on PATH")
    site = ClusterSite(binary, directory, replicated=True, node_timeout_ms=_NODE_TIMEOUT_MS)
    try:
        site.start(workers=1)
        promotions: list[threading.Thread] = []

        def promote(stream: Stream) -> None:
            promotions.append(threading.Thread(target=site.redis.promote, args=(key_of(stream),)))
            promotions[0].start()

        stream = TimedStream()
        site.ask({_AT_CHUNK: promote}, stream)
        promotions[0].join()
        if stream.text.strip() != ANSWER or not stream.done:
            raise RuntimeError(f"{stream.error or stream.text!r} instead of the undisturbed answer")
        return stream.longest_pause_s
    finally:
        site.stop()


def main(arguments: list[str]) -> int:
    """Measure and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.path.promotion", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    for name, key_of in KEYS.items():
        pauses = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as directory:
                pauses.append(pause_s(key_of, Path(directory)))
        told = f"median {statistics.median(pauses):.2f} s, longest {max(pauses):.2f} s of {len(pauses)}"
        print(f"master of the {name} killed, cluster-node-timeout {_NODE_TIMEOUT_MS / 1000:g} s: {told}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
