"""What a producer may write to Redis: entries that break the contract, wake-ups, keys of requests."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgpack
from hypothesis import strategies as st

from orcastream.schemas.constraint import Constraint
from orcastream.schemas.keys import CLASSES, Keys
from orcastream.schemas.request import RequestParameters

Command = tuple[Any, ...]

_IDS: Final = st.integers(0, 10**12).map(lambda number: f"f{number}")
_KEYS: Final = Keys("orca-demo")
_PARAMETERS: Final = (*RequestParameters.model_fields, "nonsense")
_FIELDS: Final = ("id", "v", "class", "deadline", "payload", "traceparent", "tracestate")


@dataclass(frozen=True)
class Times:
    """`unit` repeated: a few numbers describe a large value, so that it can be shrunk."""

    before: bytes
    unit: bytes
    count: int
    after: bytes = b""

    @property
    def value(self) -> bytes:
        """The bytes themselves."""
        return self.before + self.unit * self.count + self.after


SCALARS: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0, -1, 2**31, 2**32, 2**63 - 1, 2**64 - 1]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=40),
    st.binary(max_size=40),
)
NESTED: Final = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5)
)
RULES: Final = st.text(alphabet='{}[]()<>"\\|*+?:;=,.$^start01 \n', max_size=60)
"""What a schema, a regular expression or a grammar might be."""


def constraints(kinds: Iterable[str]) -> st.SearchStrategy[Any]:
    """Generate mostly one of these kinds, with a rule that is probably invalid."""
    values = RULES | st.lists(RULES, max_size=3) | NESTED
    return st.dictionaries(st.sampled_from([*kinds, "nonsense"]), values, min_size=1, max_size=2) | NESTED


_VALUES: Final = {"constraint": constraints(Constraint.model_fields), "adapter": st.text(max_size=20) | NESTED}
"""Of parameters to which any value would be one that is refused at once."""


def large(units: list[tuple[bytes, bytes, bytes]]) -> st.SearchStrategy[bytes]:
    """Generate mostly a few hundred bytes of a unit, occasionally megabytes."""
    counts = st.one_of(st.integers(0, 200), st.integers(0, 20_000), st.integers(0, 4_200_000))
    return st.builds(
        lambda parts, count: Times(parts[0], parts[1], min(count, 4_300_000 // len(parts[1])), parts[2]).value,
        st.sampled_from(units),
        counts,
    )


LARGE_PAYLOADS: Final = large(
    [
        (b'{"prompt":[', b"5,", b"5]}"),
        (b'{"prompt":[', b"1e5,", b"5]}"),
        (b'{"prompt":', b"[", b""),
        (b'{"prompt":[', b"[],", b"1]}"),
        (b'{"prompt":[', b'"",', b"1]}"),
        (b'{"prompt":"', b'\\"', b'"}'),
        (b'{"prompt":"', b"[", b'"}'),
        (b"{", b'"a":1,', b'"b":2}'),
        (b'{"prompt":[1', b"1", b"]}"),
        (b'{"a":', b'{"a":', b""),
        (b"\x81\xa6prompt\xdd\x00\x10\x00\x00", b"\x05", b""),
        (b"\x81\xa6prompt\xdd\xff\xff\xff\xff", b"\xc0", b""),
        (b"\x81\xa6prompt\xc6\x00\x10\x00\x00", b"\x05\x00\x00\x00", b""),
        (b"\xdf\x00\x05\x00\x00", b"\xa1a\x01", b""),
        (b"", b"\x91", b""),
        (b"", b"\x81\xa1a", b""),
        (b"", b"\x00", b""),
        (b"", b"\xff", b""),
    ]
)


def _pack(body: Any, *, as_json: bool) -> bytes:
    try:
        if as_json:
            return json.dumps(body, default=repr).encode(errors="surrogatepass")
        packed: bytes = msgpack.packb(body, default=repr, unicode_errors="surrogatepass")
        return packed
    except (OverflowError, TypeError, ValueError):
        return repr(body).encode(errors="surrogatepass")


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Generate a valid payload with one change, and then perhaps a few changed bytes."""
    body: dict[Any, Any] = {"prompt": draw(st.lists(st.integers(3, 1000), min_size=1, max_size=8)), "max_tokens": 2}
    for name in draw(st.lists(st.sampled_from(_PARAMETERS), max_size=3)):
        body[name] = draw(_VALUES.get(name, NESTED))
    if draw(st.booleans()):
        body["prompt"] = draw(NESTED | st.lists(st.integers(-5, 2**33), max_size=20))
    if draw(st.integers(0, 9)) == 0:
        body[draw(st.integers() | st.binary(max_size=5) | st.text(max_size=300))] = 1
    raw = bytearray(_pack(body, as_json=draw(st.booleans())))
    for _ in range(draw(st.integers(0, 2))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 5)) == 0 else raw)


def _deadlines() -> st.SearchStrategy[str | bytes]:
    good = st.just(str(int(time.time() * 1000) + 3_600_000))
    return st.one_of(good, good, good, st.integers().map(str), st.text(max_size=20), st.binary(max_size=20))


@st.composite
def entries(draw: st.DrawFn) -> Command:
    """Generate an XADD of an entry with one fault, to a stream of some class."""
    priority_class = draw(st.sampled_from(CLASSES))
    fields: dict[Any, Any] = {
        "id": draw(_IDS),
        "v": "1",
        "deadline": draw(_deadlines()),
        "payload": draw(st.one_of(payloads(), payloads(), payloads(), st.binary(max_size=60), LARGE_PAYLOADS)),
    }
    junk = st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode(errors="replace")))
    for _ in range(draw(st.integers(0, 2))):
        match draw(st.integers(0, 3)):
            case 0:
                fields.pop(draw(st.sampled_from(_FIELDS)), None)
            case 1:
                fields[draw(st.sampled_from(_FIELDS))] = draw(junk)
            case 2:
                fields[draw(junk)] = draw(junk)
            case 3:
                fields["class"] = draw(st.sampled_from((*CLASSES, "urgent")))
    if draw(st.integers(0, 40)) == 0:
        fields |= {f"x{number}": b"" for number in range(draw(st.integers(1, 5_000)))}
    flat = [part for pair in (fields or {"x": "y"}).items() for part in pair]
    return ("XADD", _KEYS.requests(priority_class), "*", *flat)


@st.composite
def keys_of_requests(draw: st.DrawFn) -> Command:
    """Generate a wake-up, a cancel, or junk in a key of one request."""
    junk, request_id = draw(st.binary(max_size=40)), draw(_IDS)
    made: tuple[Command, ...] = (
        ("XADD", _KEYS.control, "*", "type", "cancel", "target", request_id),
        ("XADD", _KEYS.control, "*", "type", draw(st.sampled_from(["cancel", "waiting", ""])), "target", junk),
        ("XADD", _KEYS.control, "*", "type", junk, "target", "WORKER"),
        ("XADD", _KEYS.control, "*", junk, junk),
        ("SET", _KEYS.cancel(request_id), junk, "PX", 60_000),
        ("SET", _KEYS.seen(request_id), junk, "PX", 60_000),
        ("SET", _KEYS.reply(request_id), junk, "PX", 60_000),
        ("XADD", _KEYS.reply(request_id), f"{draw(st.integers(1, 2**64 - 1))}-1", junk, junk),
        ("XADD", _KEYS.reply(request_id), "*", "type", draw(st.sampled_from(["started", "tokens"])), "payload", junk),
        ("HSET", _KEYS.seen(request_id), "a", junk),
    )
    return draw(st.sampled_from(made))


COMMANDS: Final = st.one_of(entries(), entries(), entries(), entries(), keys_of_requests())
