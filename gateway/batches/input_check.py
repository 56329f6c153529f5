"""Checks whether the input of a batch can be run: every line well-formed, and no custom_id twice."""

from collections.abc import Sequence
from typing import Any, Final

from orcastream.gateway.batches.batch_line import BatchLine
from orcastream.gateway.batches.input_lines import InputLine
from orcastream.gateway.openai.endpoint import GenerationEndpoint
from orcastream.schemas.errors import InvalidRequest

_MAX_ERRORS: Final = 20


def batch_error(code: str, message: str, *, line: int | None = None, param: str | None = None) -> dict[str, Any]:
    """Return one of a batch's `errors`, as OpenAI writes them."""
    return {"code": code, "line": line, "message": message, "param": param}


class InputCheck:
    """Takes the lines in order; may run in a thread."""

    def __init__(self, endpoint: GenerationEndpoint, *, max_lines: int, max_values: int) -> None:
        """`max_values`: see `BatchLine.read`."""
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._max_values = max_values
        self._first_lines: dict[str, int] = {}
        self.count = 0
        self.errors: list[dict[str, Any]] = []
        """The first errors, as OpenAI writes them."""

    @property
    def failed(self) -> bool:
        """Whether checking further is useless."""
        return len(self.errors) >= _MAX_ERRORS or self.count > self._max_lines

    def add(self, lines: Sequence[InputLine]) -> None:
        """Check the next lines."""
        for line in lines:
            self.count += 1
            if self.count > self._max_lines:
                self.complain("too_many_requests", f"The input has more than {self._max_lines} requests.")
            if self.failed:
                return
            self._check(line)

    def end(self) -> None:
        """Finish the check: there are no more lines."""
        if not self.count:
            self.complain("empty_file", "The input has no requests: one JSON object per line.")

    def complain(self, code: str, message: str, *, line: int | None = None, param: str | None = None) -> None:
        """Record an error."""
        self.errors.append(batch_error(code, message, line=line, param=param))

    def _check(self, line: InputLine) -> None:
        try:
            custom_id = BatchLine.read(line.raw, self._endpoint, self._max_values).custom_id
        except InvalidRequest as error:
            self.complain("invalid_line", str(error), line=line.at, param=error.field)
            return
        if (first := self._first_lines.setdefault(custom_id, line.at)) != line.at:
            message = f"custom_id {custom_id!r} is already used in line {first}"
            self.complain("duplicate_custom_id", message, line=line.at, param="custom_id")
