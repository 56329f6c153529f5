"""The shipped dashboards on a real Prometheus, while a worker dies. `make observe-test` tells the whole story."""

from pathlib import Path

import pytest

from tests.observe.site import ObservedService
from tests.observe.story import Story
from tests.telemetry.prometheus_binaries import NONE_FOUND, PROMETHEIS

pytestmark = [pytest.mark.server, pytest.mark.skipif(not PROMETHEIS, reason=NONE_FOUND)]


def test_a_worker_that_is_killed_is_seen_to_be_gone(tmp_path: Path) -> None:
    with ObservedService(tmp_path, 1, workers=2, lease_ms=1000) as service:
        story = Story(service)
        story.served()
        story.one_is_killed()
        story.logs_and_traces()
