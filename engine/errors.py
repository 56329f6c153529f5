"""The engine's errors, apart from invalid requests."""


def one_line(text: object) -> str:
    """Return `text` as one line: libraries often explain an error in paragraphs."""
    return " ".join(str(text).split())


def is_thread_refused(error: BaseException) -> bool:
    """Return whether `error` means that the host refused this process another thread: a later attempt may succeed."""
    return isinstance(error, RuntimeError) and "start new thread" in str(error)


class UnsupportedModel(ValueError):
    """A model that the engine would not compute correctly, or cannot load; `reason` says why in one line."""

    def __init__(self, reason: str) -> None:
        self.reason = one_line(reason)
        super().__init__(self.reason)


class UnsupportedAdapter(ValueError):
    """An adapter that cannot be loaded, or does not fit the model; `reason` says which part and why, in one line."""

    def __init__(self, reason: str) -> None:
        self.reason = one_line(reason)
        super().__init__(self.reason)


class IllegalTransition(RuntimeError):
    """A request was told to enter a state that cannot follow its current one."""


class OutOfBlocks(RuntimeError):
    """More KV blocks were requested than are free: the caller did not check first."""


class IntegrityError(AssertionError):
    """Two views of the same bookkeeping disagree: a bug in the engine."""
