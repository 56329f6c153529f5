"""A benchmark waits for a gateway, but not for a URL that no gateway can have."""

import pytest

from orcastream.bench.serve.gateway import GatewayUnavailable, served_model


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "nonsense", "ftp://127.0.0.1"])
async def test_an_unusable_url_is_refused(url: str) -> None:
    with pytest.raises(GatewayUnavailable, match=f"gateway: got '{url}', allowed: an http:// or https:// URL"):
        await served_model(url, patience_s=0)
