"""Measurements that may fail independently of each other."""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from orcastream.bench.gpu.report import Report
from orcastream.engine.errors import UnsupportedModel
from orcastream.schemas.errors import InvalidRequest

T = TypeVar("T")

_UNFIT = (ValueError, InvalidRequest, torch.OutOfMemoryError)
"""Errors of a measurement that is too large for the card or the model."""


class Attempts:
    """A runner of measurements that reports each one that does not fit or fails as a row."""

    def __init__(self, report: Report, device: torch.device) -> None:
        self._report = report
        self._device = device
        self.failed = 0
        """The number of failures, without measurements that were left out."""

    def attempt(self, what: str, measure: Callable[[], T]) -> T | None:
        """Return the result of `measure`; None if it does not fit (`left out`) or fails otherwise (`failed`).

        torch.AcceleratorError, after which the device computes nothing more, is reported and raised.
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
