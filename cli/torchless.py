"""Commands that read text do without torch, which transformers loads wherever it is installed."""

import sys


def leave_out_torch() -> None:
    """Have this process not find it: a second and 180 MiB for nothing. One that has loaded it keeps it."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # what Python takes for 'cannot be found'
