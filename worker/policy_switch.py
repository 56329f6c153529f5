"""Switches the engine's scheduling policy on request."""

import logging

from orcastream.engine import OrcaEngine
from orcastream.engine.schedule.policies import POLICIES
from orcastream.worker.engine_loop import EngineLoop
from orcastream.worker.roster import Roster
from orcastream.worker.settings import WorkerSettings

log = logging.getLogger("orcastream.worker")


class PolicySwitch:
    """Switches only if `allow_policy_switch` is set: a switch changes how all requests are served."""

    def __init__(self, settings: WorkerSettings, engine: OrcaEngine, engine_loop: EngineLoop, roster: Roster) -> None:
        self._settings = settings
        self._engine = engine
        self._engine_loop = engine_loop
        self._roster = roster

    @property
    def policies(self) -> list[str]:
        """The policies that can be switched to."""
        return sorted(POLICIES) if self._settings.allow_policy_switch else []

    def switch(self, policy: str) -> None:
        """Schedule by `policy` from the next iteration on; log a warning if that is not allowed."""
        if policy not in self.policies:
            allowed = ", ".join(self.policies) or "none: allow_policy_switch is off"
            log.warning("policy not switched", extra={"policy": policy, "allowed": allowed})
            return
        log.info("policy switched", extra={"policy": policy})
        self._engine_loop.switch_policy(policy)
        num_places = self._engine.config.num_places
        self._roster.capacity = num_places + self._settings.most_waiting(policy, num_places)
        self._roster.changed.set()
