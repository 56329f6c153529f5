"""What goes wrong for reasons that the user can mend."""


class UserError(Exception):
    """Shown as it is, one line each, without a traceback; `code` is the command's exit code."""

    code = 2

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
