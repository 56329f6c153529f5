"""Scheduling policies, one per file in this folder; each is registered under its name automatically.

A policy of another package is registered when its module is imported, or at once if the package declares that module
as an entry point of the group `orcastream.policies`.
"""

from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules

from orcastream.engine.schedule.policies.base import POLICIES, Policy, PolicyTools, register

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
for _entry_point in entry_points(group="orcastream.policies"):
    _entry_point.load()

__all__ = ["POLICIES", "Policy", "PolicyTools", "register"]
