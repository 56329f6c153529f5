"""How many workers Kubernetes would run: KEDA's redis-streams scaler and the HorizontalPodAutoscaler behind it.

KEDA's operator looks every `pollingInterval` whether a trigger is active, and moves a workload between zero and one
replica; from one on it leaves the number to an HPA, which asks for the same metric in its own rhythm. Sources:
https://keda.sh/docs/latest/scalers/redis-streams/ (a trigger without a consumer group counts XLEN),
https://keda.sh/docs/latest/concepts/scaling-deployments/ and /reference/scaledobject-spec/ (activation, cool-down),
https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/ (formula, tolerance, stabilization).
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ScaledObject:
    """What a ScaledObject says, under KEDA's own names; defaults are KEDA's and Kubernetes's."""

    stream_length: int = 5
    """Entries per worker that each trigger aims at: `streamLength`, an AverageValue."""
    activation: int = 0
    """A trigger is active above this length. redis-streams names no setting for it where it counts XLEN: 0."""
    min_replicas: int = 0
    max_replicas: int = 100
    polling_interval_s: float = 30.0
    cooldown_period_s: float = 300.0
    sync_period_s: float = 15.0
    """How often the HPA looks: `--horizontal-pod-autoscaler-sync-period` of the controller manager."""
    scale_down_window_s: float = 300.0
    """`behavior.scaleDown.stabilizationWindowSeconds`."""
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        for name, lowest in (("stream_length", 1), ("activation", 0), ("min_replicas", 0), ("max_replicas", 1)):
            if getattr(self, name) < lowest:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed: at least {lowest}")
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas: got {self.max_replicas}, allowed: at least min_replicas")

    def faster(self, factor: float) -> "ScaledObject":
        """The same with every time divided by `factor`, so that a short run shows what takes minutes."""
        return replace(
            self,
            polling_interval_s=self.polling_interval_s / factor,
            cooldown_period_s=self.cooldown_period_s / factor,
            sync_period_s=self.sync_period_s / factor,
            scale_down_window_s=self.scale_down_window_s / factor,
        )


class Autoscaler:
    """Keeps `replicas`, the number wanted. Call `poll` and `sync` in their rhythms; `now` is any clock in seconds.

    HPA's default scale-up policy (double, or four more, per 15 s) is not modelled: it does not bind up to five workers.
    """

    def __init__(self, spec: ScaledObject, replicas: int = 0) -> None:
        self.spec = spec
        self.replicas = replicas
        self._active_at: float | None = None
        self._recommended: deque[tuple[float, int]] = deque()

    def poll(self, now: float, lengths: Sequence[int]) -> int:
        """KEDA's operator, by the XLEN of each trigger's stream: wake up from zero, or go there after the cool-down."""
        spec = self.spec
        if any(length > spec.activation for length in lengths):
            self._active_at = now
            if self.replicas == 0:
                self.replicas = max(1, spec.min_replicas)
        elif self.replicas < spec.min_replicas:
            self.replicas = spec.min_replicas
        elif self.replicas > 0 and spec.min_replicas == 0 and self._cooled_down(now):
            self.replicas = 0
            self._recommended.clear()
        return self.replicas

    def sync(self, now: float, lengths: Sequence[int]) -> int:
        """The HPA: the highest proposal of all triggers, within bounds; down only as far as the whole window agrees."""
        if self.replicas == 0:  # an HPA stands still at zero
            return 0
        proposal = max(self.proposal(length) for length in lengths)
        proposal = min(max(proposal, self.spec.min_replicas, 1), self.spec.max_replicas)
        if not self._recommended:
            self._recommended.append((now, self.replicas))
        self._recommended.append((now, proposal))
        while self._recommended[0][0] < now - self.spec.scale_down_window_s:
            self._recommended.popleft()
        highest = max(replicas for _, replicas in self._recommended)
        self.replicas = max(proposal, min(self.replicas, highest))
        return self.replicas

    def proposal(self, length: int) -> int:
        """One trigger's: ceil(length / target), or no change where that is within the tolerance."""
        ratio = length / (self.spec.stream_length * self.replicas)
        if 1.0 - self.spec.tolerance <= ratio <= 1.0 + self.spec.tolerance:
            return self.replicas
        return math.ceil(length / self.spec.stream_length)

    def _cooled_down(self, now: float) -> bool:
        return self._active_at is None or now - self._active_at > self.spec.cooldown_period_s
