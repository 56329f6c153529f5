"""The origins whose pages may use a gateway."""

import pytest

from orcastream.gateway.settings import GatewaySettings
from tests.gateway.conftest import Served, Stage

FOREIGN = "https://evil.example.com"


@pytest.fixture
async def served(stage: Stage) -> Served:
    return await stage.gateway()


@pytest.mark.parametrize("origin", [FOREIGN, "null", "http://localhost:1", "https://127.0.0.1", "file://", "", "x"])
async def test_pages_of_other_origins_are_refused(served: Served, origin: str) -> None:
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("OPTIONS", "/v1/completions")):
        answer = await served.http().request(method, path, headers={"Origin": origin})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")
        assert "access-control-allow-origin" not in answer.headers


async def test_a_foreign_page_enqueues_nothing(stage: Stage, served: Served) -> None:
    """A form, or a script that may not read the answer, can send a body as plain text."""
    worker = await stage.worker()
    body = '{"model": "tiny", "prompt": "x"}'
    headers = {"Origin": FOREIGN, "Content-Type": "text/plain"}
    assert (await served.http().post("/v1/completions", content=body, headers=headers)).status_code == 403
    assert worker.requests == []


async def test_the_gateways_own_pages_may_use_it(served: Served) -> None:
    own = [{"Origin": served.url}, {"Origin": served.url.upper().replace("HTTP", "http")}, {}]
    own += [{"Origin": "https://api.example.com", "Sec-Fetch-Site": "same-origin"}]  # a proxy has changed Host
    own += [
        {"Origin": "https://localhost", "Host": "localhost:443"},
        {"Origin": "http://localhost", "Host": "localhost"},
    ]
    for headers in own:
        assert (await served.http().get("/v1/models", headers=headers)).status_code == 200


async def test_origins_can_be_allowed(stage: Stage) -> None:
    served = await stage.gateway(cors_origins=["https://app.example.com"])
    asked = {"Origin": "https://app.example.com", "Access-Control-Request-Method": "POST"}
    asked["Access-Control-Request-Headers"] = "authorization,content-type,x-stainless-os"
    http = served.http()
    preflight = await http.options("/v1/chat/completions", headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example.com"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
    for path, host, status in (
        ("/v1/models", "localhost", 200),
        ("/nowhere", "localhost", 404),
        ("/v1/models", "other.example.com", 421),
    ):
        answer = await http.get(path, headers={"Origin": "https://app.example.com", "Host": host})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == "https://app.example.com"
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers
    assert (await http.get("/v1/models", headers={"Origin": FOREIGN})).status_code == 403


async def test_all_origins_can_be_allowed(stage: Stage) -> None:
    served = await stage.gateway(cors_origins=["*"])
    answer = await served.http().get("/v1/models", headers={"Origin": "null"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


@pytest.mark.parametrize("origin", ["", "example.com", "https://a/", "https://A", "https://*.example.com", "ftp://a"])
def test_invalid_origin_settings_are_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="scheme, name and optional port"):
        GatewaySettings(_env_file=None, cors_origins=[origin])
