"""What an engine has done since it was loaded."""

from orcastream.engine.request import Request


class Totals:
    """Counters of one engine; tokens of prompts are those that requests came with, outputs of other engines not."""

    def __init__(self) -> None:
        self.iterations = 0
        self.prompt_tokens = 0
        """Computed, those recomputed after a preemption among them."""
        self.output_tokens = 0

    def prefilled(self, request: Request, length: int) -> None:
        """`length` tokens of `request`, launched just now, have been computed."""
        start = request.num_computed - length
        self.prompt_tokens += max(0, min(len(request.prompt_ids) - start, length))
