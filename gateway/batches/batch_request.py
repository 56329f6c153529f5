"""What a batch is asked to be, and how that is kept with its bulk job."""

from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orcastream.broker.jobs.order import JobOrder
from orcastream.gateway.admission.api_key import Grant
from orcastream.gateway.batches.batch_line import PRIORITY_CLASS
from orcastream.gateway.batches.expiry import ExpiresAfter
from orcastream.gateway.openai.endpoint import ChoicesEndpoint
from orcastream.gateway.openai.endpoints import OF_CHOICES
from orcastream.gateway.openai.options import Metadata
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.explain import first_complaint

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


class BatchTerms(BaseModel):
    """What does not change of a batch, kept with its bulk job. `grant`: what its maker's key allowed at that time."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["batch"] = _KIND
    asked: BatchRequest
    grant: Grant
    kept_s: float = Field(ge=0, allow_inf_nan=False, description="How long the files that it writes are kept. [s]")

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
            details=self.model_dump(mode="json"),
        )

    @classmethod
    def of(cls, order: JobOrder) -> Self | None:
        """Those of a job; None where it is no batch. InvalidRequest where they are another version's, or damaged."""
        if order.details.get("kind") != _KIND:
            return None
        try:
            terms = cls.model_validate(order.details)
        except ValidationError as error:
            raise first_complaint(error, "details") from None
        endpoint_at(terms.asked.endpoint)
        return terms


def endpoint_at(path: str) -> ChoicesEndpoint:
    """The endpoint at a path; InvalidRequest where there is none that batches can have."""
    for endpoint in OF_CHOICES:
        if endpoint.path == path:
            return endpoint
    raise InvalidRequest("endpoint", path, ", ".join(endpoint.path for endpoint in OF_CHOICES))
