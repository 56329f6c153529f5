"""Which tokens may come next in an answer that follows a constraint."""

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from orcastream.schemas.constraint import Constraint
from orcastream.text.grammar import LIMITS, grammar_of, refusal
from orcastream.text.vocabulary import Vocabulary


class ConstraintFailed(ValueError):
    """A constraint cannot be followed further: its state has grown too large, or a token violates it."""


class Matcher:
    """One answer's position in its constraint. May be handed to another thread, but not shared.

    Each has its own new state: copies of one would share what their lexers have learned, and its bound.
    """

    def __init__(self, grammar: str, vocabulary: Vocabulary, state: LLMatcher | None = None) -> None:
        """`state`: one at the beginning of an answer; without it the first call makes one, in up to a second."""
        self._grammar = grammar
        self._vocabulary = vocabulary
        self._begun = [] if state is None else [state]
        self._eos = min(vocabulary.eos_token_ids)
        self._others = [each for each in vocabulary.eos_token_ids if each != self._eos]
        self._at_start = True

    @classmethod
    def of(cls, constraint: Constraint, vocabulary: Vocabulary) -> Self:
        """Make a matcher at the beginning of an answer. Raises InvalidRequest if the constraint cannot be followed.

        A large schema takes up to a second, during which other threads run.
        """
        grammar = grammar_of(constraint)
        state = _new_state(grammar, vocabulary)
        if state.is_error():
            raise refusal(constraint, state.get_error())
        made = cls(grammar, vocabulary, state)
        mask = np.empty(vocabulary.mask_bytes, dtype=np.uint8)
        try:
            made.fill(mask)
        except ConstraintFailed:
            raise refusal(constraint, "no text follows it") from None
        if not mask.any():
            raise refusal(
                constraint, "no token of the model can begin an answer (its tokenizer may drop a space there)"
            )
        return made

    def another(self) -> Self:
        """Return a matcher at the beginning of another answer that follows the same constraint.

        The first ones take over states that this one has made, provided that it is still at its beginning.
        """
        return type(self)(self._grammar, self._vocabulary, self._begun.pop() if self._begun else None)

    def make_ready(self, count: int) -> None:
        """Make the states for `count` calls of `another`; each takes as long as `of`. Other threads run meanwhile."""
        while len(self._begun) < count:
            self._begun.append(_new_state(self._grammar, self._vocabulary))

    @property
    def _state(self) -> LLMatcher:
        self.make_ready(1)
        return self._begun[0]

    def consume(self, token_ids: Sequence[int]) -> None:
        """Take the next tokens. Raises ConstraintFailed if they are not allowed."""
        self._at_start = False
        if not self._state.consume_tokens(list(token_ids)):
            raise ConstraintFailed(self._state.get_error())

    def fill(self, mask: npt.NDArray[np.uint8]) -> None:
        """Set the bits of the tokens allowed next, a multiple of 32 bits; of end tokens where the answer may end."""
        self._state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._state.is_error():
            raise ConstraintFailed(self._state.get_error())
        if mask[self._eos // 8] >> self._eos % 8 & 1:
            for token_id in self._others:
                mask[token_id // 8] |= 1 << token_id % 8
        if self._at_start and self._vocabulary.whole_at_start is not None:
            mask &= self._vocabulary.whole_at_start


def _new_state(grammar: str, vocabulary: Vocabulary) -> LLMatcher:
    return LLMatcher(vocabulary.table, grammar, log_level=0, limits=LIMITS)
