"""The record of a stored file."""

import json
from dataclasses import asdict, dataclass
from typing import Final, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from orcastream.schemas.explain import first_complaint

Outcome = Literal["completed", "failed"]


@with_config(ConfigDict(extra="forbid", strict=True))
@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a tenant; times are Unix milliseconds of the server's clock.

    Its content is in its own pieces, or, if `job` names a bulk job, it consists of that job's results of one `outcome`,
    one per line. While it is `pending` its content is still arriving, and `size_bytes` is its maximum size.
    """

    id: str
    filename: str
    purpose: str
    size_bytes: int
    created_ms: int
    expires_ms: int
    pending: bool = False
    job: str = ""
    outcome: Outcome = "completed"

    def as_text(self) -> str:
        """Return the record as stored in Redis."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: bytes) -> "StoredFile":
        """Parse what `as_text` wrote; raise InvalidRequest if it is another version's, or damaged."""
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            raise first_complaint(error, "file") from None


_ADAPTER: Final = TypeAdapter(StoredFile)
