"""Pages of a list, in the form that OpenAI's clients expect."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from starlette.requests import Request

from orcastream.gateway.admission.query import read_number
from orcastream.gateway.http.url_secrets import without_keys
from orcastream.schemas.errors import InvalidRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The requested page: the objects after the id `after`, in this order."""

    limit: int
    after: str | None
    ascending: bool

    @classmethod
    def read(cls, request: Request, *, default: int, most: int) -> Self:
        """Read a URL's query. Raises InvalidRequest naming the defect."""
        query = request.query_params
        limit, order = read_number(request, "limit", least=1, most=most), query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest("order", without_keys(order), "asc, desc")
        return cls(default if limit is None else limit, query.get("after"), order == "asc")

    def behind(
        self, oldest_first: Sequence[T], id_of: Callable[[T], str], by_age: re.Pattern[str] | None = None
    ) -> list[T]:
        """Return everything that this page and later ones may show.

        Raises InvalidRequest if `after` is not in the list, unless it matches `by_age`: such ids sort by age, and their
        place is known even if the object is gone.
        """
        ordered = list(oldest_first) if self.ascending else list(reversed(oldest_first))
        if self.after is None:
            return ordered
        ids = [id_of(one) for one in ordered]
        if self.after in ids:
            return ordered[ids.index(self.after) + 1 :]
        if by_age is None or not by_age.fullmatch(self.after):
            raise InvalidRequest("after", without_keys(self.after), "the id of an object in the list")
        return [one for one, its_id in zip(ordered, ids, strict=True) if (its_id > self.after) == self.ascending]

    def page(self, behind: Sequence[T]) -> "Page[T]":
        """Return the page that begins with the first of these."""
        return Page(list(behind[: self.limit]), len(behind) > self.limit)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list, and whether more follows."""

    items: list[T]
    has_more: bool


def list_object(objects: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return a page as OpenAI writes it."""
    return {
        "object": "list",
        "data": list(objects),
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": has_more,
    }
