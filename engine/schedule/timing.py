"""Predicts how long an iteration takes, learned from past iterations."""

from math import inf, isfinite, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orcastream.engine.record import IterationRecord

_FORGETTING = 0.98
"""Weight of an observation relative to the next one: about fifty iterations count."""
_SWEEPS = 3
_PREFILL_FIRST = (2, 4, 1, 3, 0)
"""Order of the coefficients in a sweep: as long as several causes could explain a time, it is attributed to the
prefill, because too small a chunk does less harm than too large a one."""
_CLIP = 4.0
_FIRST = 8
"""Number of first observations taken as they are, before there are predictions to compare with."""
_SMOOTHING = 0.1
_WIDEST = 1.0
"""Largest relative deviation that one observation may add to the mean deviation."""


class IterationTimes:
    """Learns x in seconds ≈ x · (1, decode tokens, prefill tokens, context tokens, prefill attention), all x ≥ 0.

    Prefill attention is the number of query-key pairs of prefills, on which late chunks of a long prompt spend most of
    their time; it is 0 for decode steps, whose attention is proportional to their contexts.

    Least squares of relative errors with exponential forgetting. The normal equations (5 × 5) are updated, and a few
    sweeps of coordinate descent from the last solution, clipped at 0, solve them (sequential coordinate-wise
    non-negative least squares, Franc, Hlaváč and Navara, CAIP 2005), about ten microseconds per iteration. An
    observation beyond four mean deviations counts as one at that distance (as in Huber's M-estimator), so that a single
    outlier has little effect; if the machine really has changed, the mean deviation grows and lets it through.
    """

    def __init__(self) -> None:
        self._gram = [[0.0] * 5 for _ in range(5)]
        self._moments = [0.0] * 5
        self._x = [0.0] * 5
        self._seen = 0
        self.deviation = 0.0
        """Mean relative error of recent predictions."""

    def observe(self, record: "IterationRecord") -> None:
        """Learn from a computed iteration."""
        features = (
            1.0,
            float(record.decode_tokens),
            float(record.prefill_tokens),
            float(record.context_tokens),
            float(record.prefill_attention),
        )
        self._learn(features, self._plausible(self._dot(features), record.total_s))

    def _plausible(self, predicted: float, measured: float) -> float:
        """Return `measured`, clipped to a range around the prediction."""
        self._seen += 1
        if self._seen <= _FIRST or predicted <= 0:
            return max(measured, 1e-9)
        error = (measured - predicted) / predicted
        reach = _CLIP * self.deviation + 0.01
        self.deviation += _SMOOTHING * (min(abs(error), _WIDEST) - self.deviation)
        return predicted * (1 + max(-min(reach, 0.9), min(reach, error)))

    def _learn(self, features: tuple[float, ...], seconds: float) -> None:
        weight = 1 / (seconds * seconds)
        gram, moments, x = self._gram, self._moments, self._x
        for i, feature in enumerate(features):
            row, scaled = gram[i], weight * feature
            for j, other in enumerate(features):
                row[j] = _FORGETTING * row[j] + scaled * other
            moments[i] = _FORGETTING * moments[i] + scaled * seconds
        for _ in range(_SWEEPS):
            for i in _PREFILL_FIRST:
                row = gram[i]
                if row[i] > 0:
                    gap = moments[i] - sum(map(float.__mul__, row, x))
                    x[i] = max(0.0, x[i] + gap / row[i])

    def _dot(self, features: tuple[float, ...]) -> float:
        return sum(map(float.__mul__, self._x, features))

    def iteration_s(self, decodes: int, prefill: int, context: int, attention: int = 0) -> float:
        """Return the predicted seconds of an iteration; 0 before the first observation."""
        return self._dot((1.0, float(decodes), float(prefill), float(context), float(attention)))

    def prefill_s(self, num_tokens: int) -> float | None:
        """Return the seconds that computing the first `num_tokens` tokens of a request adds to its iterations.

        None if no prefill has been observed.
        """
        _, _, per_token, per_context, per_pair = self._x
        if not per_token and not per_pair:
            return None
        return (per_token + per_context) * num_tokens + per_pair * num_tokens * num_tokens / 2

    def prefill_within(self, seconds: float, decodes: int, context: int, start: int) -> int | None:
        """Return the most tokens of a prefill, from token `start` on, that an iteration may add to `decodes` steps.

        The iteration's predicted time plus the mean deviation stays within `seconds`. None: no bound is known.
        """
        _, _, per_token, per_context, per_pair = self._x
        room = seconds / (1 + self.deviation) - self.iteration_s(decodes, 0, context + start)
        # p tokens add per_token·p + per_context·p + per_pair·p·(start + p)
        linear = per_token + per_context + per_pair * start
        if room <= 0:
            return 0
        # This root of the quadratic is 2c / (b + √…): the difference √… - b would round to 0 for a tiny per_pair.
        slope = linear + sqrt(linear * linear + 4 * per_pair * room)
        most = 2 * room / slope if slope > 0 else inf
        return int(most) if isfinite(most) else None
