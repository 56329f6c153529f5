"""The survey of architectures finds the served and the refused ones; all take minutes, so a few represent them."""

import pytest

from tests.engine.model.survey import main, verdict


@pytest.mark.parametrize("name", ["ministral", "smollm3", "cwm", "gemma3", "gemma4", "got_ocr2"])
def test_served_as_generate_computes(name: str) -> None:
    assert verdict(name) == ("served", "")


def test_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mamba", "inkling_text"]) == 0
    said = capsys.readouterr().out
    assert "0 of 2 layers call the attention interface" in said
    assert "hands attention the argument position_bias, which this engine does not know" in said
    assert said.endswith("2 refused\n")
