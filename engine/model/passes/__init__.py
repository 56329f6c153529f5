"""Passes over a loaded model, each of which replaces modules with faster ones that compute the same."""

from orcastream.engine.model.passes.apply import apply_passes, fuse_modules, pack_linears, passes_unavailable

__all__ = ["apply_passes", "fuse_modules", "pack_linears", "passes_unavailable"]
