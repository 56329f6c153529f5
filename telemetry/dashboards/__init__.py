"""Grafana dashboards: defined here concisely, stored as the JSON that Grafana reads.

`python -m orcastream.telemetry.dashboards` regenerates the JSON; a test keeps the two equal.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orcastream.telemetry.dashboards.engine import ENGINE
from orcastream.telemetry.dashboards.pace import EXPORTED, SCRAPED, Pace
from orcastream.telemetry.dashboards.redis_and_workers import REDIS_AND_WORKERS
from orcastream.telemetry.dashboards.service import SERVICE

DASHBOARDS: Final = (SERVICE, ENGINE, REDIS_AND_WORKERS)
DIRECTORY: Final = Path(__file__).parent
"""Directory of the JSON for a Prometheus that scrapes."""
COMPOSE: Final = DIRECTORY.parent / "grafana" / "dashboards"
"""Directory of the JSON for the Grafana of docker-compose.yml, whose Prometheus receives metrics over OTLP."""
PACES: Final[dict[Path, Pace]] = {DIRECTORY: SCRAPED, COMPOSE: EXPORTED}


def files() -> Iterator[tuple[Path, str]]:
    """Yield every file with its text."""
    for directory, pace in PACES.items():
        for dashboard in DASHBOARDS:
            yield directory / dashboard.file_name, dashboard.to_json(pace)
