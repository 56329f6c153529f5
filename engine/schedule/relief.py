"""Smaller iterations after the device ran out of memory."""

_RECOVERY = 64
"""Iterations that must succeed in a row before the limits are doubled."""


class MemoryRelief:
    """Limits on tokens and requests per iteration, halved when one does not fit, doubled as later ones do."""

    def __init__(self, most_tokens: int, most_requests: int) -> None:
        self._most = most_tokens, most_requests
        self.tokens, self.requests = self._most
        self._succeeded = 0

    @property
    def is_tight(self) -> bool:
        """Whether the limits are below the configured ones."""
        return (self.tokens, self.requests) != self._most

    def shrink(self, num_tokens: int, num_requests: int) -> bool:
        """Lower the limits after an iteration of that size did not fit. Return False if it cannot be smaller."""
        self._succeeded = 0
        if num_tokens <= 1:
            return False
        self.tokens, self.requests = max(1, num_tokens // 2), max(1, num_requests // 2)
        return True

    def succeeded(self) -> None:
        """Note that an iteration fit."""
        if not self.is_tight:
            return
        self._succeeded += 1
        if self._succeeded >= _RECOVERY:
            self._succeeded = 0
            self.tokens = min(2 * self.tokens, self._most[0])
            self.requests = min(2 * self.requests, self._most[1])
