"""The constraint that the text of an answer must follow."""

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_serializer, model_validator

from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.limits import MAX_CONSTRAINT_CHOICE_LENGTH, MAX_CONSTRAINT_CHOICES, MAX_CONSTRAINT_LENGTH

if TYPE_CHECKING:
    from orcastream.schemas.request import RequestParameters

ChoiceText = Annotated[str, Field(min_length=1, max_length=MAX_CONSTRAINT_CHOICE_LENGTH)]


class Constraint(BaseModel):
    """Exactly one kind of constraint; the other fields are empty. Only the worker knows whether it can follow it.

    An answer that ends without being cut follows it from its first character to its last.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, json_schema_extra={"minProperties": 1, "maxProperties": 1}
    )

    json_schema: str = Field(
        "",
        min_length=1,
        max_length=MAX_CONSTRAINT_LENGTH,
        description="A JSON Schema (draft 2020-12) as text: the answer is JSON that is valid under it, properties in "
        "the order of the schema.",
    )
    regex: str = Field(
        "",
        min_length=1,
        max_length=MAX_CONSTRAINT_LENGTH,
        description="A regular expression that the whole answer matches; no look-around, no back-references.",
    )
    choice: Annotated[tuple[ChoiceText, ...], FailFast()] = Field(
        (),
        min_length=1,
        max_length=MAX_CONSTRAINT_CHOICES,
        strict=False,
        description="Texts, one of which is the answer.",
    )
    grammar: str = Field(
        "",
        min_length=1,
        max_length=MAX_CONSTRAINT_LENGTH,
        description="A context-free grammar in llguidance's form of Lark, whose rule `start` gives the answer, or in "
        "GBNF, whose rule `root` does.",
    )

    @model_validator(mode="after")
    def _one_alone(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"exactly one of {', '.join(type(self).model_fields)}")
        return self

    @model_serializer
    def _given(self) -> dict[str, Any]:
        return {self.kind: getattr(self, self.kind)}

    @property
    def kind(self) -> str:
        """The name of the field that is set."""
        (name,) = self.model_fields_set
        return name


def check_constraint(payload: "RequestParameters") -> None:
    """Raise InvalidRequest naming the parameter that conflicts with a constraint."""
    if payload.constraint is None:
        return
    if payload.use_beam_search:
        allowed = "nothing with use_beam_search, whose hypotheses are compared before any of them is complete"
        raise InvalidRequest("constraint", payload.constraint.kind, allowed)
    if payload.ignore_eos:
        raise InvalidRequest("ignore_eos", True, "false with a constraint, which says where the answer may end")
    if payload.min_tokens:
        allowed = "0 with a constraint, which says where the answer may end"
        raise InvalidRequest("min_tokens", payload.min_tokens, allowed)
