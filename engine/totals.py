"""Totals of an engine since it was loaded."""

from orcastream.engine.request import Request


class Totals:
    """Counters of one engine; prompt tokens do not include outputs that other engines generated."""

    def __init__(self) -> None:
        self.iterations = 0
        self.prompt_tokens = 0
        """Prompt tokens computed, including those recomputed after a preemption."""
        self.output_tokens = 0

    def prefilled(self, request: Request, start: int, length: int) -> None:
        """Count `length` computed tokens of `request` from `start` on; later ones may be launched already."""
        self.prompt_tokens += max(0, min(len(request.prompt_ids) - start, length))
