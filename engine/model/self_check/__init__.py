"""The self-check: compares a model's logits in flat batches with its own computation before the first request."""

from orcastream.engine.model.self_check.checks import check_loaded, check_model
from orcastream.engine.model.self_check.reference import Reference
from orcastream.engine.model.self_check.small_copy import SmallCopy, check_small_copy

__all__ = ["Reference", "SmallCopy", "check_loaded", "check_model", "check_small_copy"]
