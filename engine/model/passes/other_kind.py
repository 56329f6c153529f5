"""What a recognizer raises."""


class OtherKind(Exception):
    """The model is not of the recognized kind; the message says what differs."""


def expect(holds: bool, otherwise: str) -> None:
    """Raise OtherKind with the message `otherwise` unless the condition holds."""
    if not holds:
        raise OtherKind(otherwise)
