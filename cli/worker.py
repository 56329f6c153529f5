"""`orcastream worker`: one worker process."""

from collections.abc import Sequence

from orcastream.cli.parse import load_settings
from orcastream.cli.served_model import with_model, with_redis
from orcastream.worker.settings import WorkerSettings


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal ends it."""
    settings = with_model(with_redis(load_settings(WorkerSettings, arguments, "worker")))
    from orcastream.worker.main import run

    return run(settings)
