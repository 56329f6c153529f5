"""What a batch is asked to be, and how that is kept with its bulk job."""

from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from orcastream.broker.jobs.order import JobOrder
from orcastream.gateway.admission.api_key import Grant
from orcastream.gateway.batches.batch_line import PRIORITY_CLASS
from orcastream.gateway.batches.expiry import ExpiresAfter
from orcastream.gateway.openai.endpoint import ChoicesEndpoint
from orcastream.gateway.openai.endpoints import OF_CHOICES
from orcastream.gateway.openai.options import Metadata
from orcastream.schemas.errors import InvalidRequest

WINDOW_MS: Final = 24 * 3600 * 1000
_KIND: Final = "batch"


class BatchRequest(BaseModel):
    """The body of POST /v1/batches."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    input_file_id: str = Field(min_length=1, max_length=128, description="A file with the purpose `batch`.")
    endpoint: str = Field(description="The one of all its requests.")
    completion_window: Literal["24h"] = Field(description="What has no answer by then gets none.")
    metadata: Metadata | None = Field(None, description="Told with the batch.")
    output_expires_after: ExpiresAfter | None = Field(None, description="When the files that it writes expire.")


@dataclass(frozen=True, slots=True)
class BatchTerms:
    """What does not change of a batch. `grant`: what its maker's key allowed when it was made."""

    asked: BatchRequest
    grant: Grant
    kept_s: float
    """How long the files that it writes are kept."""

    @property
    def endpoint(self) -> ChoicesEndpoint:
        """Where its requests go; InvalidRequest where there is no such endpoint."""
        return endpoint_at(self.asked.endpoint)

    def order(self, now_ms: int, *, retention_s: float) -> JobOrder:
        """Its bulk job; `retention_s`: how long that is kept after the completion window."""
        deadline_ms = now_ms + WINDOW_MS
        return JobOrder(
            source=self.asked.input_file_id,
            created_ms=now_ms,
            deadline_ms=deadline_ms,
            kept_until_ms=deadline_ms + int(retention_s * 1000),
            tenant=self.grant.tenant,
            priority_class=PRIORITY_CLASS,
            details={
                "kind": _KIND,
                "asked": self.asked.model_dump(mode="json"),
                "grant": self.grant.model_dump(mode="json"),
                "kept_s": self.kept_s,
            },
        )

    @classmethod
    def of(cls, order: JobOrder) -> Self | None:
        """Those of a job; None where it is no batch."""
        details: Any = order.details
        if details.get("kind") != _KIND:
            return None
        asked, grant = BatchRequest.model_validate(details["asked"]), Grant.model_validate(details["grant"])
        return cls(asked, grant, details["kept_s"])


def endpoint_at(path: str) -> ChoicesEndpoint:
    """The endpoint at a path; InvalidRequest where there is none that batches can have."""
    for endpoint in OF_CHOICES:
        if endpoint.path == path:
            return endpoint
    raise InvalidRequest("endpoint", path, ", ".join(endpoint.path for endpoint in OF_CHOICES))
