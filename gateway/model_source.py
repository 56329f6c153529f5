"""Which models a gateway serves: their names, and where their files are."""

from dataclasses import dataclass
from typing import Self

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.keys import check_name


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One model: its name, which also names its queue, and its directory or hub id."""

    name: str
    path: str
    max_model_len: int | None = None
    """Lowers the context length of the model's configuration. [tokens]"""
    is_default: bool = False
    """Whether it is the one that `model` names."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `NAME=PATH`, or a directory or hub id whose last part is the name. Raises InvalidRequest."""
        name, equals, path = text.partition("=")
        if not equals:
            path, name = text, text.rstrip("/").rpartition("/")[2]
        if not path:
            raise InvalidRequest("more_models", text, "NAME=PATH, or a directory or hub id")
        return cls(check_name(name, "more_models"), path)
