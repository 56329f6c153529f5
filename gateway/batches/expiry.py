"""When files with a client-defined expiry expire."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from orcastream.schemas.errors import InvalidRequest

_LEAST_S: Final = 3600
_MOST_S: Final = 2_592_000


class ExpiresAfter(BaseModel):
    """A number of seconds after the file's creation."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    anchor: Literal["created_at"]
    seconds: Annotated[
        int, Field(ge=_LEAST_S, le=_MOST_S, description="From an hour up to the service's retention time. [s]")
    ]

    def within(self, most_s: float, field: str) -> float:
        """Return the seconds. Raises InvalidRequest for `field` if the service's retention time is shorter."""
        if self.seconds > most_s:
            raise InvalidRequest(field, self.seconds, f"{_LEAST_S} to {int(most_s)}")
        return float(self.seconds)
