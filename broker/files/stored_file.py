"""What is known of a file."""

import json
from dataclasses import asdict, dataclass
from typing import Literal, Self

Outcome = Literal["completed", "failed"]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a tenant; times are Unix milliseconds of the server's clock.

    Its content is in pieces of its own, or, where `job` names a bulk job, it is that job's results of one `outcome`,
    one per line. While it is `pending` its content is still coming, and `size_bytes` is the most that it may have.
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
        """As it is kept in Redis."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: bytes) -> Self:
        """As `as_text` wrote it."""
        return cls(**json.loads(text))
