"""Bounds the size of an answer that is gathered whole."""


class AnswerTooLarge(Exception):
    """An answer exceeds its maximum size."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"the answer has more than {most_bytes} bytes")
        self.most_bytes = most_bytes


class AnswerRoom:
    """Bytes left for all choices of all prompts."""

    def __init__(self, most_bytes: int | None) -> None:
        """`most_bytes` None means no limit."""
        self._most_bytes = most_bytes
        self._taken_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count more bytes. Raises AnswerTooLarge."""
        self._taken_bytes += size_bytes
        if self._most_bytes is not None and self._taken_bytes > self._most_bytes:
            raise AnswerTooLarge(self._most_bytes)
