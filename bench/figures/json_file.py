"""The file of a benchmark's figures."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orcastream.cli.errors import UserError


def write_json(path: Path, figures: Mapping[str, Any]) -> None:
    """Write the figures as JSON. Raises UserError if that fails: the disk may have filled up meanwhile.

    A plain file is replaced as a whole: whatever ends the process, either the old figures or the new ones are there.
    """
    text = json.dumps(figures, indent=1) + "\n"
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path, text)
    except OSError as error:
        raise UserError(f"--json: {str(path)!r} cannot be written: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f"{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
