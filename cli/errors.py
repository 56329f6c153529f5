"""Errors that the user can fix."""


class UserError(Exception):
    """An error printed as its lines, without a traceback; `code` is the command's exit code."""

    code = 2

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
