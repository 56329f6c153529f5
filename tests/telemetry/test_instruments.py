"""Instruments as the code creates them."""

import pytest

from orcastream.telemetry.instruments import counter, observe
from orcastream.telemetry.names import CLAIMED, QUEUE_WAIT


def test_an_instrument_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="got histogram, allowed: observable gauge, observable counter"):
        observe(QUEUE_WAIT, list)
    with pytest.raises(ValueError, match="got observable gauge, allowed: counter"):
        counter(CLAIMED)
    observe(CLAIMED, list)
