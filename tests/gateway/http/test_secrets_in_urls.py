"""API keys that users put into URLs are never repeated."""

import logging
from pathlib import Path

import httpx
import pytest

from orcastream.gateway.http.url_secrets import WithoutSecrets
from tests.gateway.conftest import Stage
from tests.gateway.http.conftest import serving
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer
from tests.telemetry.otlp_receiver import OtlpReceiver

KEY = "orca_Zx3-_kQ9vYt7LmN2pRs4WdBc8FgHj6KaEu1oTiXyPqZ"
"""Like one of `new_key`, but the same in each test process: it is in the names of tests."""
PATHS = (
    f"/v1/models?api_key={KEY}",
    f"/v1/models?{KEY}",
    f"/v1/models?{KEY}={KEY}",
    f"/v1/models?Key-1={KEY}",
    f"/v1/requests/x/events?include_usage={KEY}",
    f"/v1/requests/x/events?include_usage=true&include_usage={KEY}",
    f"/v1/responses/x?include={KEY}",
    f"/v1/responses/x/input_items?order={KEY}",
    f"/{KEY}/v1/models",
    f"/v1/models/{KEY}",
    f"/v1/requests/{KEY}/events",
)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_nothing_is_echoed(stage: Stage, method: str, path: str) -> None:
    answer = await (await stage.gateway()).http().request(method, path)
    assert KEY not in answer.text
    assert KEY not in str(answer.headers)


async def test_the_name_of_a_parameter_is_reported(stage: Stage) -> None:
    served = await stage.gateway()
    for name, told in (("api_key", "api_key"), (KEY, "query")):
        answer = await served.http().post("/v1/completions", params={name: "x"}, json={})
        assert answer.json()["error"]["param"] == told
        assert "no parameters in the query" in answer.json()["error"]["message"]


@pytest.mark.server
def test_nothing_is_logged(module_redis: RedisServer, tmp_path: Path) -> None:
    with serving(module_redis, tmp_path, log_level="debug") as gateway:
        for path in PATHS:
            httpx.get(f"{gateway.url}{path}", timeout=PATIENCE_S)
        httpx.get(f"{gateway.url}/the/last", timeout=PATIENCE_S)
        while "/the/last" not in gateway.log:
            assert gateway.running
        assert KEY not in gateway.log
        assert '"GET /v1/models HTTP/1.1" 200' in gateway.log


@pytest.mark.server
@pytest.mark.parametrize("conventions", ["http", "http/dup"])
def test_nothing_is_traced(
    module_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conventions: str
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", conventions)
    with OtlpReceiver() as receiver:
        for name, value in receiver.environment().items():
            monkeypatch.setenv(name, value)
        with serving(module_redis, tmp_path) as gateway:
            for path in PATHS:
                httpx.get(f"{gateway.url}{path}", timeout=PATIENCE_S)
            receiver.wait_for(lambda received: len(received.named("GET")) == len(PATHS))
        told = [span.attributes for span in receiver.named("GET")]
    assert KEY not in str(told)
    assert "/…/v1/models" in [attributes["url.path"] for attributes in told]
    assert {"REDACTED"} == {attributes["url.query"] for attributes in told if "url.query" in attributes}


def test_records_of_another_form_are_left_alone() -> None:
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "nothing", None, None)
    assert WithoutSecrets().filter(record)
    assert record.getMessage() == "nothing"
