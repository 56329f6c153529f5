"""Every hazard in the protocol's list has a test named after it."""

import re
from pathlib import Path


def test_every_hazard_has_a_test() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_hazards_*.py"))
    covered = {int(number) for number in re.findall(r"async def test_hazard_(\d\d)_", text)}
    assert covered == set(range(1, 27))
