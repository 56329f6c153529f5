"""The files of the Compose deployment, as written."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")

_VARIABLE = re.compile(r"\$\{(\w+)(?::?[-+](\w*[^${}]*)?)?")


def variables(text: str) -> dict[str, str | None]:
    """Return the variables that a Compose text reads, each with its default; None means no default."""
    return {name: default or None for name, default in _VARIABLE.findall(text)}


def needed_by(*names: str) -> set[str]:
    """Return the services that start with the named ones."""
    needed = set(names)
    for name in names:
        needed |= needed_by(*SERVICES[name].get("depends_on", {}))
    return needed
