"""A tokenizer's sections, as its tokenizer.json has them."""

import json
from typing import Any


def section_of(part: Any) -> dict[str, Any] | None:
    """What a normalizer, pre-tokenizer or decoder of `tokenizers` is; None where there is none."""
    section: dict[str, Any] | None = None if part is None else json.loads(part.__getstate__())
    return section
