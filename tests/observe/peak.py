"""A peak of known rate: refused requests at even intervals."""

import threading
import time
from types import TracebackType
from typing import Final, Self

import httpx

from tests.observe.panels import look_at
from tests.observe.server import PrometheusServer
from tests.worker.worker_process import MODEL

PER_S: Final = 10.0
WITHIN_S: Final = 15.0
"""So long after a change at the latest panels are right, and stay so."""
TENTH: Final = 0.1 * PER_S
"""As far off they may be."""
_CODE: Final = "invalid_request"
_WATCHED_S: Final = 25.0
_LOOK_S: Final = 0.25


class Peak:
    """`with Peak(url):` PER_S requests per second are refused, as evenly as the clock allows."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        body = {"model": MODEL, "prompt": "x", "max_tokens": -1}
        begun_s, sent = time.monotonic(), 0
        with httpx.Client(base_url=self._url, timeout=30, trust_env=False) as client:
            while not self._stop.wait(begun_s + sent / PER_S - time.monotonic()):
                answer = client.post("/v1/completions", json=body)
                assert answer.json()["error"]["code"] == _CODE, answer.text
                sent += 1


def wrong_until_s(servers: tuple[PrometheusServer, ...], every_s: float, per_s: float) -> dict[str, float]:
    """Return, for each path of the metrics, how long the panel differs from `per_s`, observed for a while."""
    begun_s = time.monotonic()
    wrong = dict.fromkeys((server.way for server in servers), 0.0)
    while (now_s := time.monotonic() - begun_s) < _WATCHED_S:
        for server in servers:
            said = look_at(server, every_s, "service", "Refusals").get(_CODE, 0.0)
            if abs(said - per_s) > TENTH:
                wrong[server.way] = time.monotonic() - begun_s
        time.sleep(max(0.0, begun_s + now_s + _LOOK_S - time.monotonic()))
    return wrong
