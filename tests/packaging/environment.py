"""A virtual environment with only the built wheel and its declared requirements.

The requirements are not downloaded again: they are linked from the environment that runs the tests, per distribution as
named in the wheel's metadata. So creation takes a second and needs no network, and a package that is imported but not
declared is still missing.
"""

import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def requirements_of(wheel: Path) -> list[Requirement]:
    """Return the requirements in the wheel's metadata, including extras."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]


def closure(requirements: list[Requirement], extras: set[str]) -> set[str]:
    """Return the names of all distributions that these need with these extras, recursively."""
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = _chosen(requirements, extras)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        found.add(name)
        try:
            declared = distribution(name).requires or []
        except PackageNotFoundError as error:
            raise AssertionError(f"{name} is declared but not installed here: run `make setup`") from error
        waiting += _chosen([Requirement(line) for line in declared], set(requirement.extras))
    return found


def create(directory: Path, wheel: Path, names: set[str]) -> Path:
    """Create the environment in `directory`; return its `bin` folder."""
    venv.create(directory, with_pip=False, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    for name in names:
        for top in {file.parts[0] for file in distribution(name).files or []} - {"..", "__pycache__"}:
            target = Path(str(distribution(name).locate_file(top)))
            link = site / top
            if target.exists() and not link.exists():
                link.symlink_to(target)
    installing = (sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python"), "install")
    subprocess.run(
        [*installing, "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", wheel], check=True
    )
    return directory / "bin"


def _chosen(requirements: list[Requirement], extras: set[str]) -> list[Requirement]:
    return [one for one in requirements if one.marker is None or any(_holds(one, extra) for extra in extras | {""})]


def _holds(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})
