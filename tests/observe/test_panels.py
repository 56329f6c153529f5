"""The shipped dashboards on a real Prometheus while a worker dies. `make observe-test` runs the whole story."""

from pathlib import Path

import pytest

from tests.observe.site import ObservedService
from tests.observe.story import Story
from tests.telemetry.prometheus_binaries import NONE_FOUND, PROMETHEIS

pytestmark = [pytest.mark.server, pytest.mark.skipif(not PROMETHEIS, reason=NONE_FOUND)]


def test_a_killed_worker_disappears_from_the_panels(tmp_path: Path) -> None:
    with ObservedService(tmp_path, 1, workers=2, lease_ms=1000, max_tokens=100, pause_s=0.02) as service:
        story = Story(service)
        story.served()
        story.one_is_killed()
        story.logs_and_traces()
