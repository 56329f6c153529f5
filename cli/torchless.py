"""Lets commands that only tokenize skip torch, which transformers imports wherever it is installed."""

import sys


def leave_out_torch() -> None:
    """Hide torch from this process: importing it wastes a second and 180 MiB. If already loaded, it stays."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # Python treats this as 'not found'
