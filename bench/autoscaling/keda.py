"""A simulation of how many workers Kubernetes would run: KEDA's redis-streams triggers with the HPA behind them.

KEDA's operator checks every `pollingInterval` for work, and moves a workload between none and one replica; from one on
it leaves the number to an HPA, which reads the same metric at its own interval. Sources:
https://keda.sh/docs/latest/scalers/redis-streams/ (a trigger without a consumer group counts XLEN),
https://keda.sh/docs/latest/concepts/scaling-deployments/ (activation, scaling modifiers),
https://keda.sh/docs/latest/reference/scaledobject-spec/ (cool-down),
https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/ (formula, tolerance, behavior).
"""

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Policy:
    """The HPA's limit of change within a period: a number of pods, or a percentage of those at its beginning."""

    kind: Literal["Pods", "Percent"]
    value: int
    period_s: float

    def faster(self, factor: float) -> "Policy":
        """Return the policy with a shorter period."""
        return replace(self, period_s=self.period_s / factor)


@dataclass(frozen=True)
class ScaledObject:
    """The settings of a ScaledObject; the defaults are those of KEDA and Kubernetes."""

    target: int
    """The HPA's target of requests per worker: an AverageValue of the sum of XLEN of all request streams."""
    activation_target: int = 0
    """More requests than this activate the workload."""
    min_replicas: int = 0
    max_replicas: int = 100
    polling_interval_s: float = 30.0
    cooldown_period_s: float = 300.0
    sync_period_s: float = 15.0
    """The HPA's interval: `--horizontal-pod-autoscaler-sync-period` of the controller manager."""
    scale_down_window_s: float = 300.0
    """`behavior.scaleDown.stabilizationWindowSeconds`; that of scaleUp is 0."""
    scale_up: tuple[Policy, ...] = (Policy("Percent", 100, 15), Policy("Pods", 4, 15))
    scale_down: tuple[Policy, ...] = (Policy("Percent", 100, 15),)
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        for name, lowest in (("target", 1), ("activation_target", 0), ("min_replicas", 0), ("max_replicas", 1)):
            if getattr(self, name) < lowest:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed: at least {lowest}")
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas: got {self.max_replicas}, allowed: at least min_replicas")

    def faster(self, factor: float) -> "ScaledObject":
        """Return the settings with every time divided by `factor`, so that a short run shows a process of minutes."""
        times = ("polling_interval_s", "cooldown_period_s", "sync_period_s", "scale_down_window_s")
        return replace(
            self,
            scale_up=tuple(policy.faster(factor) for policy in self.scale_up),
            scale_down=tuple(policy.faster(factor) for policy in self.scale_down),
            **{name: getattr(self, name) / factor for name in times},
        )


class Autoscaler:
    """The desired number of `replicas`. Call `poll` and `sync` at their intervals; `now` is any clock in seconds."""

    def __init__(self, spec: ScaledObject, replicas: int = 0) -> None:
        self.spec = spec
        self.replicas = replicas
        self._active_at: float | None = None
        self._recommended: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()

    def poll(self, now: float, length: int) -> int:
        """Act as KEDA's operator, given the waiting and running requests: leave zero, or return after the cool-down."""
        spec = self.spec
        if length > spec.activation_target:
            self._active_at = now
            if self.replicas == 0:
                self.replicas = max(1, spec.min_replicas)
        elif self.replicas < spec.min_replicas:
            self.replicas = spec.min_replicas
        elif self.replicas > 0 and spec.min_replicas == 0 and self._cooled_down(now):
            self.replicas = 0
            self._recommended.clear()
            self._changes.clear()
        return self.replicas

    def sync(self, now: float, length: int) -> int:
        """Act as the HPA: apply the formula's proposal within the bounds, the window and the policies."""
        if self.replicas == 0:  # an HPA does nothing at zero
            return 0
        proposal = min(max(self.proposal(length), self.spec.min_replicas, 1), self.spec.max_replicas)
        wanted = self._limited(now, self._stabilized(now, proposal))
        if wanted != self.replicas:
            self._changes.append((now, wanted - self.replicas))
            self.replicas = wanted
        return self.replicas

    def proposal(self, length: int) -> int:
        """Return ceil(length / target), or the current number if the difference is within the tolerance."""
        ratio = length / (self.spec.target * self.replicas)
        if 1.0 - self.spec.tolerance <= ratio <= 1.0 + self.spec.tolerance:
            return self.replicas
        return math.ceil(length / self.spec.target)

    def _stabilized(self, now: float, proposal: int) -> int:
        """Scale up at once; scale down only to the highest proposal within the window."""
        if not self._recommended:
            self._recommended.append((now, self.replicas))
        self._recommended.append((now, proposal))
        while self._recommended[0][0] < now - self.spec.scale_down_window_s:
            self._recommended.popleft()
        highest = max(replicas for _, replicas in self._recommended)
        return max(proposal, min(self.replicas, highest))

    def _limited(self, now: float, wanted: int) -> int:
        """Limit the change to the most generous policy, relative to the replicas at the beginning of its period."""
        if wanted > self.replicas:
            limits = [self._allowed(now, policy, 1) for policy in self.spec.scale_up]
            return min(wanted, max(self.replicas, *limits))
        if wanted < self.replicas:
            limits = [self._allowed(now, policy, -1) for policy in self.spec.scale_down]
            return max(wanted, min(self.replicas, *limits))
        return wanted

    def _allowed(self, now: float, policy: Policy, sign: int) -> int:
        before = self.replicas - sum(change for at, change in self._changes if at > now - policy.period_s)
        if policy.kind == "Pods":
            return before + sign * policy.value
        share = before * (1 + sign * policy.value / 100)
        return math.ceil(share) if sign > 0 else int(share)

    def _cooled_down(self, now: float) -> bool:
        return self._active_at is None or now - self._active_at > self.spec.cooldown_period_s
