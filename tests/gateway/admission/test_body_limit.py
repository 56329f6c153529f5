"""The size that a Content-Length announces, however it is spelled."""

import pytest

from orcastream.gateway.admission.body_limit import announced_in


@pytest.mark.parametrize(
    ("content_length", "announced_bytes"),
    [
        (b"", None),
        (b"-1", None),
        (b"1e3", None),
        (b"0", 0),
        (b"0017", 17),
        (b"0" * 5000 + b"17", 17),
        (b"9" * 5000, 10**18 - 1),
    ],
)
def test_announced_bytes(content_length: bytes, announced_bytes: int | None) -> None:
    assert announced_in(content_length) == announced_bytes
