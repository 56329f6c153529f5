"""Totals of an engine since it was loaded."""

from orcastream.engine.request import Request


class Totals:
    """Counters of one engine; prompt tokens do not include outputs that other engines generated."""

    def __init__(self) -> None:
        self.iterations = 0
        self.prompt_tokens = 0
        """Prompt tokens computed, including those recomputed after a preemption."""
        self.output_tokens = 0

    def prefilled(self, request: Request, length: int) -> None:
        """Count the last `length` launched tokens of `request`, which have been computed."""
        start = request.num_computed - length
        self.prompt_tokens += max(0, min(len(request.prompt_ids) - start, length))
