"""The request that creates a batch, and how it is stored with the bulk job."""

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
    endpoint: str = Field(description="The endpoint of all its requests.")
    completion_window: Literal["24h"] = Field(description="Requests without an answer by then get none.")
    metadata: Metadata | None = Field(None, description="Returned with the batch.")
    output_expires_after: ExpiresAfter | None = Field(None, description="When the files that it writes expire.")


class BatchTerms(BaseModel):
    """The constant terms of a batch, stored with its bulk job. `grant`: what its creator's key allowed at that time."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["batch"] = _KIND
    asked: BatchRequest
    grant: Grant
    kept_s: float = Field(ge=0, allow_inf_nan=False, description="How long the files that it writes are kept. [s]")

    @property
    def endpoint(self) -> ChoicesEndpoint:
        """The endpoint of its requests. Raises InvalidRequest if there is no such endpoint."""
        return endpoint_at(self.asked.endpoint)

    def order(self, now_ms: int, *, retention_s: float) -> JobOrder:
        """Return its bulk job; `retention_s`: how long the job is kept after the completion window."""
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
        """Return the terms of a job; None if it is not a batch.

        Raises InvalidRequest if another version wrote them or they are damaged.
        """
        if order.details.get("kind") != _KIND:
            return None
        try:
            terms = cls.model_validate(order.details)
        except ValidationError as error:
            raise first_complaint(error, "details") from None
        endpoint_at(terms.asked.endpoint)
        return terms


def endpoint_at(path: str) -> ChoicesEndpoint:
    """Return the endpoint at a path. Raises InvalidRequest if batches cannot use it."""
    for endpoint in OF_CHOICES:
        if endpoint.path == path:
            return endpoint
    raise InvalidRequest("endpoint", path, ", ".join(endpoint.path for endpoint in OF_CHOICES))
