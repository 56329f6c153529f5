"""A program that serves HTTP on this machine until the test ends."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from tests.parent import tied_to_parent
from tests.patience import PATIENCE_S


class ServerProcess:
    """A server at 127.0.0.1:`port`; its output goes to the file `log`."""

    def __init__(
        self, command: Sequence[str], port: int, log: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(tied_to_parent(command), stdout=output, stderr=output, env=environment)

    def wait_ready(self, path: str) -> None:
        """Wait until the path answers with 200."""
        give_up_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_s and self._process.poll() is None:
            try:
                if self._http.get(path).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise AssertionError(self._log.read_text(errors="replace")[-4000:])

    def get(self, path: str, **parameters: str) -> httpx.Response:
        """GET."""
        return self._http.get(path, params=parameters)

    def kill(self) -> None:
        """SIGKILL."""
        self._http.close()
        self._process.kill()
        self._process.wait()
