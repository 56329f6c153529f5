"""The console finds Redis as gateways and workers do."""

from pathlib import Path

import pytest

from orcastream.cli.main import main
from tests.redis_sentinels import Sentinels


def test_requests_are_listed_through_sentinels(
    redis_binary: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentinels = Sentinels(redis_binary, tmp_path)
    sentinels.start()
    try:
        arguments = ["requests", "list", "--redis-url", sentinels.url, "--served-model-name", "demo"]
        assert main(arguments) == 0, capsys.readouterr().err
    finally:
        sentinels.stop()
