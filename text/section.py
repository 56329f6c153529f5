"""A tokenizer's sections, as in its tokenizer.json."""

import json
from typing import Any


def section_of(part: Any) -> dict[str, Any] | None:
    """Return the section of a normalizer, pre-tokenizer or decoder of `tokenizers`; None if there is none."""
    section: dict[str, Any] | None = None if part is None else json.loads(part.__getstate__())
    return section
