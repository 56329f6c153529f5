"""The two shapes of OpenAI's API, told apart by the request's id."""

from enum import StrEnum
from uuid import uuid4


class Kind(StrEnum):
    """The value is the prefix of a response's id, which is the request's id in the broker, too.

    So a gateway that has never seen a request knows from its id alone how to write its chunks.
    """

    COMPLETION = "cmpl"
    CHAT = "chatcmpl"

    @staticmethod
    def of(request_id: str) -> "Kind":
        """The kind of a request; one posted by another producer, under an id without prefix, reads as a completion."""
        return Kind.CHAT if request_id.startswith(f"{Kind.CHAT}-") else Kind.COMPLETION

    def new_id(self) -> str:
        """A fresh id of 128 random bits."""
        return f"{self}-{uuid4().hex}"

    def own_id(self, key: str) -> str:
        """The id that a client's own key stands for: the same key of the same client names the same request."""
        return key if key.startswith(f"{self}-") else f"{self}-{key}"

    @property
    def whole_object(self) -> str:
        """`object` of an answer that is not streamed."""
        return "chat.completion" if self is Kind.CHAT else "text_completion"

    @property
    def chunk_object(self) -> str:
        """`object` of a streamed chunk."""
        return "chat.completion.chunk" if self is Kind.CHAT else "text_completion"
