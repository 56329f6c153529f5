"""What a client may send to a gateway: bodies, headers and queries that break the rules, on every route."""

import json
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from orcastream.gateway.openai.constraints import CONSTRAINT_NAMES
from orcastream.gateway.openai.endpoints import ENDPOINTS
from orcastream.gateway.openai.request import parameter_names
from orcastream.gateway.openai.tokenizing import DetokenizeRequest, TokenizeRequest
from orcastream.gateway.openai.unimplemented import NEUTRAL
from orcastream.schemas.candidates import CHANGING_LOGITS
from tests.fuzz.entries import NESTED, RULES, constraints, large
from tests.worker.worker_process import MODEL

POSTS: Final = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize")
ROUTES: Final = (
    *(("POST", path) for path in POSTS),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{}"),
    ("GET", "/v1/requests/{}/events"),
    ("GET", "/v1/responses/{}"),
    ("DELETE", "/v1/responses/{}"),
    ("POST", "/v1/responses/{}/cancel"),
    ("GET", "/v1/responses/{}/input_items"),
    ("DELETE", "/v1/requests/{}"),
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("GET", "/health"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/metrics"),
    ("GET", "/{}"),
)
_NAMES: Final = sorted(
    frozenset().union(
        *map(parameter_names, ENDPOINTS), TokenizeRequest.model_fields, DetokenizeRequest.model_fields, NEUTRAL
    )
    | {"nonsense"}
)
_KINDS: Final = ("json", "regex", "choice", "grammar", "json_object")
_VALUES: Final = {
    **dict.fromkeys(CONSTRAINT_NAMES, RULES | st.lists(RULES, max_size=3) | NESTED),
    "structured_outputs": constraints(_KINDS),
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(["json_object", "json_schema", "text"])}, optional={"json_schema": NESTED}
    )
    | NESTED,
    "logit_bias": st.dictionaries(st.integers(0, 1005).map(str), st.floats(-101, 101), max_size=5) | NESTED,
    "logprobs": st.booleans() | st.integers(-1, 25) | NESTED,
    "echo": st.booleans() | NESTED,
    "reasoning_effort": st.sampled_from(["low", "high", ""]) | NESTED,
    **dict.fromkeys(CHANGING_LOGITS.keys() - {"logit_bias"}, st.floats(-3, 3) | NESTED),
}
"""Of parameters to which any value would be one that is refused at once."""


@dataclass(frozen=True)
class Call:
    """One request as bytes. `whole`: a complete HTTP request."""

    raw: bytes
    whole: bool = True

    def __repr__(self) -> str:
        return f"Call({len(self.raw)} bytes: {self.raw[:600]!r}{'...' if len(self.raw) > 600 else ''})"


_HEAD: Final = f'{{"model":"{MODEL}","max_tokens":1,'.encode()
_RESPONSE: Final = f'{{"model":"{MODEL}","max_output_tokens":1,'.encode()
_PART: Final = b'{"type":"text","text":"x"}'
LARGE_BODIES: Final = large(
    [
        (_HEAD + b'"prompt":"', b" ", b'"}'),
        (_HEAD + b'"prompt":"', b"lorem ", b'"}'),
        (_HEAD + b'"prompt":"', b"\xf0\x9f\x91\xa9", b'"}'),
        (_HEAD + b'"prompt":"', b"\\u00e9", b'"}'),
        (_HEAD + b'"prompt":"', b'\\"', b'"}'),
        (_HEAD + b'"prompt":"[', b"{,", b'"}'),
        (_HEAD + b'"prompt":[5', b",5", b"]}"),
        (_HEAD + b'"prompt":[5', b",5e1", b"]}"),
        (_HEAD + b'"prompt":[5', b"5", b"]}"),
        (_HEAD + b'"prompt":[5', b",[]", b"]}"),
        (_HEAD + b'"prompt":["a"', b',""', b"]}"),
        (_HEAD + b'"prompt":', b"[", b""),
        (_HEAD + b'"prompt":', b'{"a":', b""),
        (_HEAD + b'"prompt":"x","stop":["a"', b',"a"', b"]}"),
        (_HEAD + b'"prompt":"x","logit_bias":{"0":1', b',"5":1', b"}}"),
        (_HEAD + b'"messages":[', b'{"role":"user","content":"hi"},', b'{"role":"user","content":"hi"}]}'),
        (
            _HEAD + b'"messages":[{"role":"user","content":[{"type":"text","text":"x"}',
            b',{"type":"text","text":"x"}',
            b"]}]}",
        ),
        (_HEAD + b'"messages":[{"role":"user","content":"', b"x\\n", b'"}]}'),
        (_RESPONSE + b'"input":"', b"lorem ", b'"}'),
        (_RESPONSE + b'"input":[', b'{"role":"user","content":"hi"},', b'{"role":"user","content":"hi"}]}'),
        (_RESPONSE + b'"input":"x","include":["a"', b',"a"', b"]}"),
        (_RESPONSE + b'"input":"x","text":', b'{"a":', b""),
        (b"{", b'"a":1,', b'"b":2}'),
        (b"", b" ", b"{}"),
        (b"", b"\x00", b""),
        (b"", b"\xff", b""),
    ]
)


@st.composite
def _bodies(draw: st.DrawFn) -> bytes:
    """Generate a valid body with one change, and then perhaps a few changed bytes."""
    body: dict[str, Any] = {"model": MODEL, "max_tokens": draw(st.integers(1, 3)), "temperature": 0}
    if draw(st.integers(0, 2)) == 0:
        body["max_output_tokens"] = body.pop("max_tokens")
        body["input"] = draw(st.text(max_size=60) | st.just([{"role": "user", "content": "x"}]))
    elif draw(st.booleans()):
        one = st.text(max_size=60) | st.lists(st.integers(-1, 1005), max_size=10)
        body["prompt"] = draw(one | st.lists(one, max_size=4))
    else:
        body["messages"] = [{"role": "user", "content": draw(st.text(max_size=60))}]
    if draw(st.integers(0, 3)) == 0:
        body["stream"] = True
    for name in draw(st.lists(st.sampled_from(_NAMES), max_size=2)):
        body[name] = draw(_VALUES.get(name, NESTED))
    if draw(st.integers(0, 5)) == 0:
        body["messages"] = draw(
            st.lists(st.dictionaries(st.sampled_from(["role", "content", "name"]), NESTED), max_size=4)
        )
    if draw(st.integers(0, 9)) == 0:
        body[draw(st.text(max_size=100))] = draw(NESTED)
    raw = bytearray(json.dumps(body, default=repr, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass"))
    for _ in range(draw(st.integers(0, 2))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 5)) == 0 else raw)


_TOKENS: Final = st.text(
    alphabet=st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1
)
_LINE: Final = st.binary(max_size=60).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b""))
_HEADERS: Final = st.one_of(
    st.tuples(
        st.sampled_from(
            [
                *("Authorization", "Idempotency-Key", "Last-Event-ID", "traceparent", "tracestate", "Accept"),
                *("Content-Type", "Content-Encoding", "Range", "Expect", "Origin", "Cookie", "Transfer-Encoding"),
                *("Upgrade", "Connection", "Host", "X-Request-Id", "Content-Length"),
            ]
        ).map(str.encode),
        st.one_of(_LINE, st.integers().map(lambda number: str(number).encode()), st.just(b"chunked")),
    ),
    st.tuples(_TOKENS.map(str.encode), _LINE),
)
_FRAMING: Final = (b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"connection")
_SEGMENT: Final = st.one_of(
    st.sampled_from([MODEL, "f0", "cmpl-f0", "chatcmpl-x", "resp_f0", "..", "%00", "%ff", "a/b", ""]),
    st.text(alphabet="abcABC019_.-%/~", max_size=40),
)
_QUERY: Final = st.one_of(
    st.just(""),
    st.just(""),
    st.sampled_from(
        [
            "?include_usage=true",
            "?stream=true",
            "?stream=true&starting_after=3",
            "?limit=2&order=asc",
            "?a=1&a=2",
            "?" + "a=b&" * 500,
        ]
    ),
    st.text(alphabet="abc=&%+;?/019", max_size=60).map(lambda text: f"?{text}"),
)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Generate a request that an HTTP server may receive."""
    method, path = draw(st.sampled_from((*ROUTES, *ROUTES[:2], *ROUTES[:2], *ROUTES[:2])))
    if draw(st.integers(0, 30)) == 0:
        method = draw(st.sampled_from(["PUT", "PATCH", "OPTIONS", "HEAD", "TRACE", "get", "X" * 100]))
    target = path.format(draw(_SEGMENT)) + (draw(_QUERY) if draw(st.integers(0, 3)) == 0 else "")
    body = b""
    if path in POSTS or draw(st.integers(0, 9)) == 0:
        body = draw(st.one_of(_bodies(), _bodies(), _bodies(), st.binary(max_size=100), LARGE_BODIES))
    whole = method != "HEAD"
    lines = [f"{method} {target} HTTP/1.1".encode(), b"Host: localhost", b"Content-Length: %d" % len(body)]
    for name, value in draw(st.lists(_HEADERS, max_size=2)):
        lines.append(name + b": " + value)
        whole = whole and name.lower() not in _FRAMING
    return Call(b"\r\n".join(lines) + b"\r\n\r\n" + body, whole)


@st.composite
def garbage(draw: st.DrawFn) -> Call:
    """Generate bytes that are not HTTP."""
    return Call(draw(st.binary(max_size=300)) + b"\r\n\r\n", whole=False)


CALLS: Final = st.one_of(calls(), calls(), calls(), calls(), calls(), garbage())
