"""Grafana dashboards: written here in few words, kept beside as the JSON that Grafana reads.

`python -m orcastream.telemetry.dashboards` writes the JSON anew; a test keeps the two equal.
"""

from pathlib import Path
from typing import Final

from orcastream.telemetry.dashboards.engine import ENGINE
from orcastream.telemetry.dashboards.redis_and_workers import REDIS_AND_WORKERS
from orcastream.telemetry.dashboards.service import SERVICE

DIRECTORY: Final = Path(__file__).parent
DASHBOARDS: Final = (SERVICE, ENGINE, REDIS_AND_WORKERS)
