"""Beam search over the engine's requests: every hypothesis is a request, and all advance together."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from orcastream.engine.beam import Beam
from orcastream.schemas.stopping import FinishReason


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished output with its score; `reason` says why it ended."""

    output_ids: tuple[int, ...]
    score: float
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Branch:
    """A running hypothesis of the next step: hypothesis number `parent` of this step, continued with `token`."""

    parent: int
    token: int
    score: float


class BeamSearch:
    """The decisions of one beam search; the scheduler decides what is computed, and when.

    The rules are those of transformers' `generate` with `num_beams`: of the likeliest continuations of all running
    hypotheses, only the best `width` may end, and the best `width` that have not ended continue. Scores are float32
    sums of log probabilities, so that ties and rounding match transformers.
    """

    def __init__(self, beam: Beam, stop_token_ids: Collection[int], max_tokens: int) -> None:
        self.beam = beam
        self._stops = frozenset(stop_token_ids)
        self._max_tokens = max_tokens
        self._finished: list[Hypothesis] = []
        self.scores = [0.0]
        """Scores of the running hypotheses; a single one before the first step."""

    def step(self, outputs: Sequence[Sequence[int]], candidates: Sequence[Sequence[tuple[int, float]]]) -> list[Branch]:
        """Return the hypotheses that continue; if there are none, the search is over and `best` has the result.

        `outputs[i]` are the output tokens of running hypothesis i, `candidates[i]` its likeliest next tokens with
        their log probabilities (-inf: not allowed), likeliest first.
        """
        found = self._ranked(candidates)
        length = len(outputs[0]) + 1
        last = length >= self._max_tokens
        ended = [last or branch.token in self._stops for branch in found]
        for branch, over in list(zip(found, ended, strict=True))[: self.beam.width]:
            if over:
                self._finish((*outputs[branch.parent], branch.token), branch, length)
        running = [branch for branch, over in zip(found, ended, strict=True) if not over][: self.beam.width]
        if not running or self._is_over(running[0].score, length):
            return []
        self.scores = [branch.score for branch in running]
        return running

    def best(self) -> list[Hypothesis]:
        """Return the `num_return` best finished hypotheses, best first."""
        return self._finished[: self.beam.num_return]

    def _ranked(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> list[Branch]:
        """Return the likeliest continuations of all hypotheses; the earlier hypothesis comes first on a tie."""
        branches = [
            Branch(parent, token, float(np.float32(logprob) + np.float32(self.scores[parent])))
            for parent, each in enumerate(candidates)
            for token, logprob in each
            if logprob > -np.inf
        ]
        return sorted(branches, key=lambda branch: -branch.score)[: self.beam.num_candidates(self._stops)]

    def _finish(self, output_ids: tuple[int, ...], branch: Branch, length: int) -> None:
        """Add a finished hypothesis and keep the best `width`, even if a single step finishes more."""
        score = float(np.float32(branch.score) / np.float32(length**self.beam.length_penalty))
        reason = FinishReason.STOP if branch.token in self._stops else FinishReason.LENGTH
        self._finished.append(Hypothesis(output_ids, score, reason))
        self._finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self._finished[self.beam.width :]

    def _is_over(self, best_running: float, length: int) -> bool:
        """Whether no running hypothesis can still replace a finished one, judged at its current length."""
        if len(self._finished) < self.beam.width:
            return False
        possible = float(np.float32(best_running) / np.float32(length**self.beam.length_penalty))
        return self.beam.early_stopping or possible <= self._finished[-1].score
