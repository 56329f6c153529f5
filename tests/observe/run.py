"""`make observe-test`: the story on real Prometheus servers, and its pictures.

With `--pictures DIR`, the panels and the traces of two requests are drawn there.
"""

import argparse
import importlib.util
import sys
import tempfile
import time
from pathlib import Path

from orcastream.telemetry.dashboards.pace import EXPORTED
from tests.observe.site import ObservedService
from tests.observe.story import Story
from tests.telemetry.prometheus_binaries import NONE_FOUND, PROMETHEIS

EVERY_S = float(EXPORTED.every_s)
"""As Compose has it; the other Prometheus scrapes as often."""
WATCHED_S = 20.0
"""How long it goes on after each step, so that pictures show what follows."""


def tell(service: ObservedService, pictures: Path | None) -> None:
    """Run the story, print a line for each step, and draw its pictures."""
    begun_s = time.time()
    for server in service.servers:
        by_stores = ", by way of collectors as Compose has them" if server.pushed and service.stores else ""
        print(f"{'prometheus':<16}{server.version}, {server.way}{by_stores}", flush=True)
    story = Story(service)
    for step in (
        *(story.served, story.peak_and_fall, story.one_is_killed, story.logs_and_traces),
        *(story.none_is_left, story.others_come),
    ):
        before_s = time.time()
        line = step()
        print(f"{step.__name__:<16}{line} [{time.time() - before_s:.0f} s]", flush=True)
        time.sleep(WATCHED_S)
    if pictures is not None:
        from tests.observe.pictures import draw

        draw(service, story, begun_s, time.time(), pictures)


def main() -> int:
    """Return 0 if every step succeeds."""
    parser = argparse.ArgumentParser(prog="observe-test")
    parser.add_argument("--pictures", type=Path, help="directory for pictures")
    options = parser.parse_args()
    if options.pictures is not None and importlib.util.find_spec("matplotlib") is None:
        print("observe-test: --pictures needs matplotlib: pip install 'orcastream[bench]'", file=sys.stderr)
        return 1
    if not PROMETHEIS:
        print(f"observe-test: {NONE_FOUND}", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="orcastream-observe-") as directory,
        ObservedService(Path(directory), EVERY_S, workers=3, lease_ms=5000) as service,
    ):
        tell(service, options.pictures)
        sizes = service.exported_bytes
        if sizes:
            print(f"{'exports':<16}{len(sizes)}, of {sum(sizes) / len(sizes) / 1000:.0f} kB in the mean")
    print("observe-test: every step holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
