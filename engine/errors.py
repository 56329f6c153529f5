"""What can go wrong in the engine apart from an invalid request."""


def one_line(text: object) -> str:
    """`text` without line breaks: libraries like to explain in paragraphs."""
    return " ".join(str(text).split())


class UnsupportedModel(ValueError):
    """A model that the engine would not compute right, or cannot load; `reason` says which and why, in one line."""

    def __init__(self, reason: str) -> None:
        self.reason = one_line(reason)
        super().__init__(self.reason)


class UnsupportedAdapter(ValueError):
    """An adapter that cannot be read, or does not fit the model; `reason` says which part and why, in one line."""

    def __init__(self, reason: str) -> None:
        self.reason = one_line(reason)
        super().__init__(self.reason)


class IllegalTransition(RuntimeError):
    """A request was asked to change into a state that cannot follow the one it is in."""


class OutOfBlocks(RuntimeError):
    """More KV blocks were asked for than are free: the caller did not check first."""


class IntegrityError(AssertionError):
    """Two views of the same bookkeeping disagree: a bug of the engine."""
