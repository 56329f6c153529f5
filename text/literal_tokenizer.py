"""A tokenizer once more, to which control tokens are text like any other."""

import copy
import json
import re
from typing import Any

from orcastream.text.section import section_of
from orcastream.text.text_cuts import TextCuts


class LiteralTokenizer:
    """Shares the model, and with it most of the memory, of a tokenizer of `tokenizers`. Safe in several threads."""

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
        """Ids that this one gives out otherwise, where a vocabulary has gaps."""
        pieces = [token.content for token_id, token in added if token.special and self._is_piece(token.content)]
        self._inside = re.compile("|".join(f"(?<={re.escape(one[0])})(?={re.escape(one[1:])})" for one in pieces))
        """Between the first letter and the others of control tokens that the model finds in texts by itself."""
        self._has_pieces = bool(pieces)
        self._cuts = TextCuts(self._own)

    def encode(self, text: str) -> Any:
        """The encoding, or the ids, of a part of a text that something comes before."""
        parts = self._inside.split(text) if self._has_pieces else [text]
        parts = [each for part in parts for each in self._cuts.parts(part)]
        encodings = self._own.encode_batch_fast(parts, add_special_tokens=False)
        if len(encodings) == 1 and not self._renamed:
            return encodings[0]
        return [self._renamed.get(token_id, token_id) for encoding in encodings for token_id in encoding.ids]

    def _is_piece(self, content: str) -> bool:
        """Whether a model has a control token in its vocabulary, and takes it like any word of a text."""
        ids = self._own.encode(content, add_special_tokens=False).ids
        return len(content) > 1 and self._own.token_to_id(content) in ids


def _never_first(pre_tokenizer: Any) -> Any:
    """A pre-tokenizer to which no text is the first: some put a space before that one."""
    state = section_of(pre_tokenizer) or {}
    for step in (state, *state.get("pretokenizers", ())):
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
    own = copy.deepcopy(pre_tokenizer)
    own.__setstate__(json.dumps(state).encode())
    return own
