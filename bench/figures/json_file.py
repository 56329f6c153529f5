"""The file of a benchmark's figures."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orcastream.cli.errors import UserError


def write_json(path: Path, figures: Mapping[str, Any]) -> None:
    """Write the figures as JSON. Raises UserError if that fails: the disk may have filled up meanwhile."""
    try:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--json: {str(path)!r} cannot be written: {error.strerror}") from None
