"""Answers that follow a schema but never end: they show the cost of masks at outputs of exact lengths."""

import json
import random
from collections.abc import Collection

from orcastream.schemas.constraint import Constraint
from orcastream.schemas.errors import InvalidRequest
from orcastream.text.matcher import Matcher
from orcastream.text.vocabulary import Vocabulary

_MOST = 100_000
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["person", "company", "robot"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
        "active": {"type": "boolean"},
    },
    "required": ["name", "age", "kind", "tags", "active"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": _PERSON, "minItems": _MOST}
"""More than any output contains."""

_PIECES = ('{"', '"}', '":', '",', ' "', '": ', '": "', '", "', "[]", "]}", "},", ", ", "true", "false", "null", "\n")


def endless_matcher(vocab_size: int, eos_token_ids: Collection[int]) -> Matcher:
    """Return a matcher at the beginning of such an answer, over a made-up vocabulary: weights and text are random.

    Raises InvalidRequest if no token could end it.
    """
    if not eos_token_ids:
        raise InvalidRequest("--with-schema", True, "nothing: this model has no end-of-sequence token")
    tokens = _tokens(vocab_size)
    vocabulary = Vocabulary(tokens, eos_token_ids, special=eos_token_ids, encode=lambda text: list(text.encode()))
    return Matcher.of(Constraint(json_schema=json.dumps(SCHEMA)), vocabulary)


def _tokens(count: int) -> list[bytes]:
    """Return single bytes, pieces of JSON, numbers up to 999, then words of two to nine letters, half with a space."""
    draw = random.Random(0)
    texts = [bytes([byte]) for byte in range(256)]
    texts += [piece.encode() for piece in _PIECES] + [str(number).encode() for number in range(10, 1000)]
    known = set(texts)
    while len(texts) < count:
        word = "".join(draw.choices("etaoinshrdlucmfwypvbgkjqxz", k=draw.randint(2, 9)))
        text = f"{draw.choice(('', ' '))}{word}".encode()
        if text not in known:
            known.add(text)
            texts.append(text)
    return texts[:count]
