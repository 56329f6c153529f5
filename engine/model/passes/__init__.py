"""Passes over a loaded model, each of which replaces modules with faster ones that compute the same.

A pass of another package is registered when its module is imported, or at once if the package declares that module as
an entry point of the group `orcastream.model_passes`.
"""

from orcastream.engine.extensions import load_extensions
from orcastream.engine.model.passes.apply import (
    added_passes,
    apply_passes,
    fuse_modules,
    pack_linears,
    passes_unavailable,
)
from orcastream.engine.model.passes.base import Pass

load_extensions("orcastream.model_passes")

__all__ = ["Pass", "added_passes", "apply_passes", "fuse_modules", "pack_linears", "passes_unavailable"]
