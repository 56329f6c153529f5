"""A variant of a tokenizer that treats control tokens as plain text."""

import copy
import json
import re
from typing import Any

from orcastream.text.encode_parts import encode_parts
from orcastream.text.section import section_of
from orcastream.text.text_cuts import TextCuts


class LiteralTokenizer:
    """Shares the model, and so most of the memory, of a tokenizer of `tokenizers`. Thread-safe."""

    def __init__(self, backend: Any) -> None:
        from tokenizers import Tokenizer

        self._own = Tokenizer(backend.model)
        if backend.normalizer is not None:
            self._own.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            self._own.pre_tokenizer = _never_first(backend.pre_tokenizer)
        added = sorted(backend.get_added_tokens_decoder().items())
        for _, token in added:
            self._own.add_special_tokens([token]) if token.special else self._own.add_tokens([token])
        self._own.encode_special_tokens = True
        ids = ((self._own.token_to_id(token.content), token_id) for token_id, token in added)
        self._renamed = {own: token_id for own, token_id in ids if own != token_id}
        """Ids that differ in this tokenizer, if the vocabulary has gaps."""
        pieces = [token.content for token_id, token in added if token.special and self._is_piece(token.content)]
        self._inside = re.compile("|".join(f"(?<={re.escape(one[0])})(?={re.escape(one[1:])})" for one in pieces))
        """Matches between the first letter and the rest of control tokens that the model itself finds in texts."""
        self._has_pieces = bool(pieces)
        self._cuts = TextCuts(self._own)

    def encode(self, text: str) -> Any:
        """Return the encoding, or the ids, of a part of a text that is not at its start."""
        parts = self._inside.split(text) if self._has_pieces else [text]
        parts = [each for part in parts for each in self._cuts.parts(part)]
        encodings = encode_parts(self._own, parts)
        if len(encodings) == 1 and not self._renamed:
            return encodings[0]
        return [self._renamed.get(token_id, token_id) for encoding in encodings for token_id in encoding.ids]

    def _is_piece(self, content: str) -> bool:
        """Whether the model's own vocabulary contains a control token and treats it like any word."""
        ids = self._own.encode(content, add_special_tokens=False).ids
        return len(content) > 1 and self._own.token_to_id(content) in ids


def _never_first(pre_tokenizer: Any) -> Any:
    """Return a pre-tokenizer that treats no text as the first: some put a space before the first text."""
    state = section_of(pre_tokenizer) or {}
    for step in (state, *state.get("pretokenizers", ())):
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
    own = copy.deepcopy(pre_tokenizer)
    own.__setstate__(json.dumps(state).encode())
    return own
