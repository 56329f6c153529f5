"""Calls that schemathesis derives from the gateway's own OpenAPI document: some conform, some do not."""

from typing import Any

import schemathesis
import schemathesis.specs.openapi.schemas  # otherwise loaded during tests, whose deep recursion breaks CPython 3.11
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tests.fuzz.http_client import Answer
from tests.fuzz.target import Target, Violation

_MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")


def cases(url: str) -> st.SearchStrategy[Any]:
    """Generate cases for every operation, both valid and invalid."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    return st.one_of(
        [
            operation.as_strategy(generation_mode=mode)
            for operation in operations
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        ]
    )


def try_case(target: Target, case: Any) -> None:
    """Send a case, and compare the response with the document."""
    if isinstance(case.body, dict):
        own = "max_output_tokens" if case.path == "/v1/responses" else "max_tokens"
        for name in _MAX_TOKENS:  # a valid request must not be a long one
            if isinstance(case.body.get(name), int) or name == own:
                case.body[name] = 1
    shown = f"{case.method} {case.formatted_path} {case.body!r:.600}"

    def act() -> None:
        target.counts["schemathesis"] += 1
        response = case.call(base_url=target.site.gateway.url, timeout=30)
        target.judge(Answer(response.status_code, response.content), shown)
        try:
            case.validate_response(
                response, checks=[not_a_server_error, status_code_conformance, response_schema_conformance]
            )
        except (AssertionError, BaseExceptionGroup) as error:
            if response.status_code != 504:
                raise Violation("server_error", f"not as the OpenAPI document says: {error}") from None

    target.watched(act, shown)
