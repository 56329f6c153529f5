"""One measurement, which may fail without the others."""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from orcastream.bench.gpu.report import Report
from orcastream.engine.errors import UnsupportedModel
from orcastream.schemas.errors import InvalidRequest

T = TypeVar("T")

_UNFIT = (ValueError, InvalidRequest, torch.OutOfMemoryError)
"""What says that a measurement is too large for the card, or for the model."""


class Attempts:
    """Measures one thing after another; what does not fit or fails is told in a row of the report."""

    def __init__(self, report: Report, device: torch.device) -> None:
        self._report = report
        self._device = device
        self.failed = 0
        """How many failed, those left out not counted."""

    def attempt(self, what: str, measure: Callable[[], T]) -> T | None:
        """What `measure` returns; None where it does not fit (`left out`) or fails otherwise (`failed`).

        torch.AcceleratorError, behind which the device computes nothing more, is told and raised.
        """
        try:
            return measure()
        except UnsupportedModel as error:  # a ValueError, and of no model that is measured
            self._fail(what, error)
        except _UNFIT as error:
            self._report.add("left out", what=what, reason=_reason(error))
        except torch.AcceleratorError as error:
            self._fail(what, error)
            raise
        except Exception as error:
            self._fail(what, error)
        finally:
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        return None

    def _fail(self, what: str, error: Exception) -> None:
        self.failed += 1
        self._report.add("failed", what=what, reason=_reason(error))


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".removesuffix(": ")
