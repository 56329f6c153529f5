"""Scheduling policies, one per file in this folder; each is registered under its name automatically.

A policy of another package is registered when its module is imported, or at once if the package declares that module
as an entry point of the group `orcastream.policies`.
"""

from importlib import import_module
from pkgutil import iter_modules

from orcastream.engine.extensions import load_extensions
from orcastream.engine.schedule.policies.base import POLICIES, Policy, PolicyTools, register

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
load_extensions("orcastream.policies")

__all__ = ["POLICIES", "Policy", "PolicyTools", "register"]
