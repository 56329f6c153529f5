"""The project's requirements are pinned."""

import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.conftest import ROOT


def test_every_dependency_of_every_extra_is_pinned() -> None:
    """The setup omits the extra `bench`, and a list written after it would lose its pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(pin.partition("==")[0]) for pin in pins if "==" in pin}
    assert {canonicalize_name(Requirement(line).name) for line in asked} - pinned == {"orcastream"}


def test_the_command_that_writes_the_pins_includes_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    within_dev = {extra for line in extras["dev"] for extra in Requirement(line).extras}
    left_out = ",".join(["dev", *sorted(extras.keys() - within_dev - {"dev"})])
    before, _, _ = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("pip freeze")
    assert f"pip install --constraint constraints.txt --editable '.[{left_out}]'" in before
