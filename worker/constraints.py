"""Prepares the constraints of claimed requests for the engine."""

from collections.abc import Collection

from orcastream.schemas.constraint import Constraint
from orcastream.schemas.errors import InvalidRequest
from orcastream.text.matcher import Matcher
from orcastream.text.tokenizer import Tokenizer
from orcastream.text.vocabulary import NoVocabulary, Vocabulary


class Constraints:
    """The constraints that answers of one model can follow."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self._why_none = "it has no tokenizer"
        self._vocabulary: Vocabulary | None = None
        if tokenizer is not None:
            try:
                self._vocabulary = Vocabulary.of(tokenizer, vocab_size, eos_token_ids)
            except NoVocabulary as why:
                self._why_none = str(why)

    def matcher(self, constraint: Constraint) -> Matcher:
        """Return a matcher for an answer, to use or copy; may take seconds. Raises InvalidRequest. Thread-safe."""
        if self._vocabulary is None:
            raise InvalidRequest(
                "constraint", constraint.kind, f"nothing: this model supports no constraints ({self._why_none})"
            )
        return Matcher.of(constraint, self._vocabulary)
