"""Scheduling policies, one per file; each is known by its name from the moment its file lies here."""

from importlib import import_module
from pkgutil import iter_modules

from engine.schedule.policies.base import POLICIES, Policy, PolicyTools, register

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["POLICIES", "Policy", "PolicyTools", "register"]
