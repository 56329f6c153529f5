"""How large an answer may get that is gathered whole."""


class AnswerTooLarge(Exception):
    """An answer has more bytes than are taken."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"the answer has more than {most_bytes} bytes")
        self.most_bytes = most_bytes


class AnswerRoom:
    """What all choices of all prompts may still take."""

    def __init__(self, most_bytes: int | None) -> None:
        """None: any number."""
        self._most_bytes = most_bytes
        self._taken_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Some more has come. Raises AnswerTooLarge."""
        self._taken_bytes += size_bytes
        if self._most_bytes is not None and self._taken_bytes > self._most_bytes:
            raise AnswerTooLarge(self._most_bytes)
