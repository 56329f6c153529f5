"""The console in a real browser, with real processes."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.path.gateway_process import GatewayProcess
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer
from tests.worker.worker_process import WorkerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = os.environ.get("ORCASTREAM_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
LEASE_MS = 4000
"""A browser takes the cores that a worker renews its leases with."""
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Headless Chromium; the tests are skipped without it or without playwright."""
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium found on this machine")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


class Site:
    """Redis, workers and a gateway; each can be killed and restarted."""

    def __init__(self, redis: RedisServer, folder: Path) -> None:
        self.redis = redis
        self._folder = folder
        self._processes: list[GatewayProcess | WorkerProcess] = []
        self.workers: list[WorkerProcess] = []
        self.gateway: GatewayProcess

    def start_worker(self, **settings: Any) -> WorkerProcess:
        worker = WorkerProcess(self.redis.url, self._log(), **{"max_batch_size": 4, "lease_ms": LEASE_MS, **settings})
        self._processes.append(worker)
        self.workers.append(worker)
        return worker

    def start_gateway(self, **settings: Any) -> GatewayProcess:
        self.gateway = GatewayProcess(self.redis.url, self._log(), **{"lease_ms": LEASE_MS, **settings})
        self._processes.append(self.gateway)
        return self.gateway

    def close(self) -> None:
        for process in self._processes:
            process.kill()

    def _log(self) -> Path:
        return self._folder / f"process{len(self._processes)}.log"


@pytest.fixture
def site(redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Processes for this test only, on an empty server; workers allow their policy to be switched."""
    monkeypatch.setenv("ORCASTREAM_ALLOW_POLICY_SWITCH", "true")
    site = Site(redis_server, tmp_path)
    yield site
    site.close()


class Errors:
    """The errors and warnings of a page."""

    def __init__(self, page: "Page") -> None:
        self._found: list[str] = []
        page.on("pageerror", lambda error: self._found.append(str(error)))
        page.on("console", lambda message: self._note(message.type, message.text))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self._found.append(text)

    def other_than(self, *expected: str) -> list[str]:
        """Return complaints that contain none of these texts."""
        return [one for one in self._found if not any(text in one for text in expected)]


OpenConsole = Callable[..., tuple["Page", Errors]]


@pytest.fixture
def open_console(browser: "Browser") -> Iterator[OpenConsole]:
    """Opens the console of a gateway in its own browser context: `open_console(url, color_scheme="dark")`."""
    contexts = []

    def open_one(url: str, **options: Any) -> tuple["Page", Errors]:
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 1000}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        errors = Errors(page)
        page.goto(f"{url}/console")
        return page, errors

    yield open_one
    for context in contexts:
        context.close()
