"""asyncapi.yaml describes what the code does: each check compares both ways, and a mutated document fails one."""

import copy
import json
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator  # type: ignore[import-untyped]
from jsonschema.validators import extend  # type: ignore[import-untyped]

from orcastream import schemas
from orcastream.broker.entry import EntryRef, Mark
from orcastream.broker.scripts import BURY
from orcastream.schemas import limits
from orcastream.schemas.codec import Form, encode
from orcastream.schemas.errors import ErrorCode, InvalidRequest
from orcastream.schemas.events import (
    Ending,
    Event,
    Output,
    PromptRun,
    Run,
    Started,
    Terminal,
    Usage,
    decode_event,
    encode_event,
)
from orcastream.schemas.keys import CLASSES, DEFAULT_NAMESPACE, GROUP, Keys, lane
from orcastream.schemas.request import ENTRY_FIELDS, GenerationRequest, Payload
from orcastream.schemas.stopping import FinishReason

Doc = dict[str, Any]
DOCUMENT: Doc = yaml.safe_load((Path(schemas.__file__).parent / "asyncapi.yaml").read_text(encoding="utf-8"))
NOW_MS = 1_800_000_000_000

# JSON Schema treats 1.0 as an integer; the contract does not, because its msgpack and JSON readers distinguish the two.
STRICT = Draft7Validator.TYPE_CHECKER.redefine(
    "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
)
Validator = extend(Draft7Validator, type_checker=STRICT)


def schema(doc: Doc, name: str) -> Doc:
    found: Doc = doc["components"]["schemas"][name]
    return found


def validator(doc: Doc, name: str) -> Any:
    """A validator of one named schema; references point into the whole document."""
    return Validator({"$ref": f"#/components/schemas/{name}", "components": doc["components"]})


# --- the request ----------------------------------------------------------------------------------------------------


def inlined(described: Doc) -> Doc:
    """Return a pydantic schema with its definitions inlined."""
    definitions = described.pop("$defs")

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return walk(definitions[node["$ref"].rsplit("/", 1)[1]])
        return {key: walk(value) for key, value in node.items()}

    resolved: Doc = walk(described)
    return resolved


def without_words(node: Any) -> Any:
    """Return a schema without its human-readable parts, with `x or null` written as one type."""
    if isinstance(node, list):
        return [without_words(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "anyOf" in node:
        option, null = node["anyOf"]
        assert null == {"type": "null"}
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        node = {**rest, **option, "type": [option["type"], "null"]}
    return {key: without_words(value) for key, value in node.items() if key not in {"title", "x-msgpack"}}


def model_payload_schema() -> Doc:
    """Return pydantic's schema of Payload, in the document's dialect."""
    described: Doc = without_words(inlined(Payload.model_json_schema()))
    properties = described["properties"]
    # pydantic states the bounds of the prompt's undecoded value
    prompt = properties["prompt"]
    prompt["minItems"], prompt["maxItems"] = prompt.pop("minLength"), prompt.pop("maxLength")
    for field in [*properties.values(), *properties["constraint"]["properties"].values()]:
        field.pop("description", None)
    return {key: described[key] for key in ("type", "properties", "required", "additionalProperties")}


def check_payload(doc: Doc) -> None:
    stated = without_words(schema(doc, "RequestPayload"))
    properties = stated["properties"]
    for name, field in [*properties.items(), *properties["constraint"]["properties"].items()]:
        assert len(field.pop("description")) > 10, name
    assert {key: value for key, value in stated.items() if key != "description"} == model_payload_schema()
    request = doc["components"]["messages"]["request"]
    assert request["x-max-payload-bytes"] == limits.MAX_PAYLOAD_BYTES
    for words in (
        f"{limits.MAX_DEADLINE_AHEAD_MS} ms",
        f"{limits.PAYLOAD_BYTES_BESIDE} bytes plus {limits.PAYLOAD_BYTES_PER_TOKEN} ",
        f"{limits.MAX_PAYLOAD_PARTS} maps and arrays",
    ):
        assert any(words in rule for rule in request["x-rules"])


def check_headers(doc: Doc) -> None:
    headers = schema(doc, "RequestHeaders")
    properties = headers["properties"]
    assert headers["type"] == "object"
    assert headers["additionalProperties"] is False
    assert set(properties) | {"payload"} == ENTRY_FIELDS
    assert {name: field["type"] for name, field in properties.items()} == dict.fromkeys(properties, "string")
    assert properties["id"]["pattern"] == f"^{limits.ID_PATTERN.pattern}$"
    assert properties["v"]["enum"] == [str(limits.PROTOCOL_VERSION)]
    assert properties["class"]["enum"] == list(CLASSES)
    for name in ("traceparent", "tracestate"):
        assert f"more than {limits.MAX_TRACE_HEADER_LENGTH} characters is dropped" in properties[name]["description"]
    for name in properties:
        fields = {b"id": b"r", b"v": b"1", b"class": b"low", b"deadline": b"1", b"payload": b'{"prompt":[1]}'}
        fields.pop(name.encode(), None)
        assert accepted(fields, "low") is (name not in headers["required"]), name
    for text in ("0", "9" * 13, "9" * 16, "", "-1", "1e3", "1 "):
        stated = re.search(properties["deadline"]["pattern"], text) is not None
        assert accepted(entry(deadline=text.encode()), "low", now_ms=10**15) is stated, text


def entry(**changes: bytes) -> dict[bytes, bytes]:
    fields = {"id": b"r", "v": b"1", "class": b"low", "deadline": b"1", "payload": b'{"prompt":[1]}', **changes}
    return {name.encode(): value for name, value in fields.items()}


def accepted(fields: dict[bytes, bytes], stream_class: str, now_ms: int = NOW_MS) -> bool:
    try:
        GenerationRequest.from_fields(fields, stream_class=stream_class, now_ms=now_ms)
    except InvalidRequest:
        return False
    return True


# --- events ---------------------------------------------------------------------------------------------------------

RUN = Run(1, 4, (5, 6), ([-0.5, [[5, -0.5]]], [-1.0, [[6, -1.0]]]))
PROMPT_RUN = PromptRun(0, (5, 6), (None, [-0.5, [[6, -0.5]]]), (None, 1))
ENDING = Ending(FinishReason.STOP, 6, text_length=9, stop="end")
FULL_EVENTS: dict[str, Event] = {
    "Started": Started(
        "w", "m", "t", "low", "low 1-1", 7, 3, n=2, traceparent="00-aa", answer_format="think", prompt_logprobs=1
    ),
    "Prompt": PROMPT_RUN,
    "Tokens": Output((RUN,)),
    "Finished": Terminal((ENDING,), Usage(3, 6, 1), (RUN,), timings={"queue_ms": 1.0}),
    "Error": Terminal(
        (ENDING,), Usage(3, 6, 1), (RUN,), ErrorCode.INVALID_REQUEST, "n: got 0", "n", timings={"queue_ms": 1.0}
    ),
}
BARE_EVENTS: dict[str, Event] = {
    "Started": Started("w", "m", "t", "low", "low 1-1", 7, 3),
    "Prompt": replace(PROMPT_RUN, ranks=None),
    "Tokens": Output((Run(0, 0, (1,)),)),
    "Finished": Terminal((Ending(None, 0),), Usage(3, 0), (Run(0, 0, (1,)),)),
    "Error": Terminal((Ending(None, 0),), Usage(3, 0), (Run(0, 0, (1,)),), ErrorCode.LOST),
}


def resolve(doc: Doc, node: Doc) -> Doc:
    if "$ref" in node:
        return schema(doc, node["$ref"].rsplit("/", 1)[1])
    return node


def compare_object(doc: Doc, node: Doc, full: Any, bare: Any, path: str) -> None:
    """Compare properties with a full event, and required ones with a minimal event, recursively."""
    node = resolve(doc, node)
    if node["type"] == "array" and full and isinstance(full[0], dict):
        compare_object(doc, node["items"], full[0], bare[0], f"{path}[]")
    elif node["type"] == "object" and "properties" in node:
        assert set(node["properties"]) == set(full), path
        assert set(node["required"]) == set(bare), path
        for name, field in node["properties"].items():
            if name in bare:
                compare_object(doc, field, full[name], bare[name], f"{path}.{name}")


def check_events(doc: Doc) -> None:
    for name, full in FULL_EVENTS.items():
        bare = BARE_EVENTS[name]
        compare_object(doc, schema(doc, name), full.to_wire(), bare.to_wire(), name)
        assert schema(doc, f"{name}Headers")["properties"]["type"]["enum"] == [full.type]
        assert schema(doc, f"{name}Headers")["required"] == ["type"]
        message = doc["components"]["messages"][full.type]
        assert message["payload"] == {"$ref": f"#/components/schemas/{name}"}
        assert message["headers"] == {"$ref": f"#/components/schemas/{name}Headers"}
        for event in (full, bare):
            validator(doc, name).validate(event.to_wire())
        for other in FULL_EVENTS:
            wire = FULL_EVENTS[other].to_wire()
            assert validator(doc, name).is_valid(wire) is (other == name or (other, name) in CONTAINED), (other, name)
    assert set(doc["channels"]["replies"]["messages"]) == {event.type for event in FULL_EVENTS.values()}


# Readers skip unknown fields, so a terminal has everything that a tokens event needs.
CONTAINED = {("Finished", "Tokens"), ("Error", "Tokens"), ("Error", "Finished")}


def check_enums(doc: Doc) -> None:
    codes = schema(doc, "ErrorCode")
    assert codes["enum"] == [str(code) for code in ErrorCode]
    assert re.findall(r"^- `(\w+)`:", codes["description"], re.MULTILINE) == codes["enum"]
    assert schema(doc, "Ending")["properties"]["finish_reason"]["enum"] == [str(reason) for reason in FinishReason]
    assert schema(doc, "Ending")["properties"]["stop"]["type"] == ["string", "integer"]
    stated = doc["components"]["parameters"]["class"]
    assert stated["enum"] == list(CLASSES)
    assert stated["default"] == GenerationRequest("r", Payload(prompt=(1,)), deadline_ms=0).priority_class


def check_bounds_of_events(doc: Doc) -> None:
    """Check that numbers of an event are within the limits of the request that it answers."""
    run, started = schema(doc, "Run")["properties"], schema(doc, "Started")["properties"]
    assert run["choice"]["maximum"] == limits.MAX_CHOICES - 1
    assert run["tokens"]["items"] == {"type": "integer", "minimum": 0, "maximum": limits.MAX_TOKEN_ID}
    assert (started["seed"]["minimum"], started["seed"]["maximum"]) == (limits.MIN_SEED, limits.MAX_SEED)
    assert (started["n"]["minimum"], started["n"]["maximum"]) == (1, limits.MAX_CHOICES)
    counts = [run["choice"], run["position"], started["prompt_tokens"], *schema(doc, "Usage")["properties"].values()]
    prompt = schema(doc, "Prompt")["properties"]
    assert prompt["tokens"]["items"] == run["tokens"]["items"]
    asked = started["prompt_logprobs"]
    assert (asked["type"], asked["minimum"], asked["maximum"]) == ("integer", 0, limits.MAX_LOGPROBS)
    item = prompt["logprobs"]["items"]
    assert (item["type"], item["minItems"], item["maxItems"]) == (["array", "null"], 2, 2)
    rank = prompt["ranks"]["items"]
    assert (rank["type"], rank["minimum"], rank["maximum"]) == (["integer", "null"], 1, limits.MAX_TOKEN_ID + 1)
    assert f"At most {limits.MAX_PROMPT_LOGPROBS_IN_EVENT} of" in doc["components"]["messages"]["prompt"]["summary"]
    told = schema(doc, "RequestPayload")["properties"]["prompt_logprobs"]["description"]
    assert f"at most {limits.MAX_PROMPT_LOGPROBS}." in told
    counts += [prompt["position"]]
    counts += [schema(doc, "Ending")["properties"][name] for name in ("tokens", "text_length")]
    assert all(count["type"] == "integer" and count["minimum"] == 0 for count in counts)
    assert schema(doc, "Started")["properties"]["n"]["type"] == "integer"
    assert schema(doc, "Timings")["additionalProperties"] == {"type": "number", "minimum": 0}
    pair = run["logprobs"]["items"]
    assert (pair["minItems"], pair["maxItems"]) == (2, 2)


# --- keys -----------------------------------------------------------------------------------------------------------


def check_keys(doc: Doc) -> None:
    keys = Keys("org/model-1.5", "prod")
    names = {
        "requests": keys.requests("high"),
        "replies": keys.reply("r1"),
        "control": keys.control,
        "dead": keys.dead,
        "seen": keys.seen("r1"),
        "cancel": keys.cancel("r1"),
        "workers": keys.worker("host-1-ab"),
    }
    assert set(doc["channels"]) == set(names)
    values = {
        "namespace": "prod",
        "model": "org/model-1.5",
        "class": "high",
        "id": "r1",
        "lane": lane("r1"),
        "worker": "host-1-ab",
    }
    tags = {"modelTag": f"{{{values['model']}}}", "laneTag": f"{{{values['lane']}}}"}
    for channel, name in names.items():
        stated = doc["channels"][channel]
        assert re.sub(r"<(\w+)>", lambda found: values[found[1]], stated["x-redis"]["key"]) == name
        parameters = re.findall(r"{(\w+)}", stated["address"])
        assert sorted(parameters) == sorted(stated["parameters"])
        assert re.sub(r"{(\w+)}", lambda found: {**values, **tags}[found[1]], stated["address"]) == name
    assert doc["channels"]["requests"]["x-redis"]["group"] == GROUP
    assert doc["channels"]["requests"]["x-redis"]["groupStart"] == "0"
    assert doc["components"]["parameters"]["namespace"]["default"] == DEFAULT_NAMESPACE
    assert doc["components"]["parameters"]["laneTag"]["examples"] == [f"{{{lane('example-1')}}}"]
    assert limits.ID_RULE in doc["components"]["parameters"]["id"]["description"]
    for name in ("namespace", "model"):
        assert limits.NAME_RULE in doc["components"]["parameters"][name]["description"]
    types = {name: stated["x-redis"]["type"] for name, stated in doc["channels"].items()}
    assert types == dict.fromkeys(names, "stream") | {"seen": "string", "cancel": "string", "workers": "hash"}


def check_other_entries(doc: Doc) -> None:
    """Check control entries, dead letters and `seen`; tests/docs/test_wire.py compares them with data in Redis."""
    control, dead = schema(doc, "Control"), schema(doc, "DeadLetter")
    assert control["type"] == dead["type"] == "object"
    assert list(control["properties"]) == control["required"] == ["type", "target"]
    assert [field["type"] for field in control["properties"].values()] == ["string", "string"]
    assert control["properties"]["type"]["enum"] == ["cancel", "drain", "waiting", "watch", "policy"]
    written = re.findall(r"'(\w+)'", BURY.text.partition("local copy = {")[2].partition("}")[0])
    assert list(dead["properties"]) == dead["required"] == written
    assert dead["properties"]["reason"] == {"$ref": "#/components/schemas/ErrorCode"}
    assert {dead["properties"][name]["type"] for name in ("entry", "message", "attempts")} == {"string"}
    assert dead["properties"]["attempts"]["pattern"] == "^[0-9]+$"
    assert schema(doc, "Worker")["type"] == "object"
    for part in (dead, schema(doc, "Worker")):
        assert part["additionalProperties"] == {"type": "string"}
    assert schema(doc, "Cancel")["type"] == "string"
    assert schema(doc, "Seen")["type"] == "string"
    pattern = schema(doc, "Seen")["pattern"]
    assert pattern == f"^({'|'.join(CLASSES)}) [0-9]+-[0-9]+( [a-z_]+ [A-Za-z0-9_./-]+)?$"
    for ref in (EntryRef("low", "1-0"), EntryRef("realtime", "1800000000000-12")):
        assert re.search(pattern, str(ref))
        assert EntryRef.parse(str(ref)) == ref
        for mark in (
            Mark(ref),
            Mark(ref, "finished", "org/a-1.b"),
            *(Mark(ref, str(code), "default") for code in ErrorCode),
        ):
            assert re.search(pattern, str(mark))
            assert Mark.find(str(mark)) == mark


# --- examples and references ----------------------------------------------------------------------------------------


def check_examples(doc: Doc) -> None:
    messages = doc["components"]["messages"]
    for name, message in messages.items():
        assert message["examples"], name
        for example in message["examples"]:
            for part in ("headers", "payload"):
                if part in message:
                    schema_name = message[part]["$ref"].rsplit("/", 1)[1]
                    validator(doc, schema_name).validate(example[part])
    for example in messages["request"]["examples"]:
        for form in Form:
            fields = {name: value.encode() for name, value in example["headers"].items()}
            request = GenerationRequest.from_fields(
                {
                    name.encode(): value
                    for name, value in (fields | {"payload": encode(example["payload"], form)}).items()
                },
                stream_class="normal",
                now_ms=NOW_MS,
            )
            assert json.loads(request.payload.model_dump_json(include=set(example["payload"]))) == example["payload"]
    assert set(messages["request"]["examples"][-1]["payload"]) == set(Payload.model_fields)
    assert set(messages["request"]["examples"][-1]["headers"]) | {"payload"} == ENTRY_FIELDS
    for name in ("started", "prompt", "tokens", "finished", "error"):
        for example in messages[name]["examples"]:
            for form in Form:
                event = decode_event({b"type": name.encode(), b"payload": encode(example["payload"], form)})
                assert event.type == name
                assert event.to_wire() == example["payload"]


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def check_references(doc: Doc) -> None:
    """Check that each reference resolves, and that every definition is used."""
    used = set(references(doc))
    for reference in used:
        node: Any = doc
        for part in reference.removeprefix("#/").split("/"):
            assert part in node, reference
            node = node[part]
    for kind in ("schemas", "messages", "parameters"):
        for name in doc["components"][kind]:
            assert f"#/components/{kind}/{name}" in used, name
    for operation in doc["operations"].values():
        for message in operation["messages"]:
            assert message["$ref"].startswith(operation["channel"]["$ref"] + "/messages/")
    answers = doc["operations"]["postRequest"]["reply"]["messages"]
    assert [one["$ref"].rsplit("/", 1)[1] for one in answers] == list(doc["channels"]["replies"]["messages"])
    sent = {operation["channel"]["$ref"].rsplit("/", 1)[1] for operation in doc["operations"].values()}
    assert sent | {"replies"} == set(doc["channels"])


CHECKS: tuple[Callable[[Doc], None], ...] = (
    check_payload,
    check_headers,
    check_events,
    check_enums,
    check_bounds_of_events,
    check_keys,
    check_other_entries,
    check_examples,
    check_references,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_document(check: Callable[[Doc], None]) -> None:
    check(copy.deepcopy(DOCUMENT))


# --- what is validated alike ----------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([-1, 0, 1, 2, 15, 16, 17, 20, 21, 100, 101, 10**6, 10**6 + 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63])
    | st.floats(-1, 101)
    | st.sampled_from(["", "cancel", "continue", "a/b", "a b", "x" * 128, "x" * 129, "x" * 256, "x" * 257, "é"])
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)
CONSTRAINTS = st.dictionaries(
    st.sampled_from(["json_schema", "regex", "choice", "grammar", "lark"]),
    st.sampled_from(["", "a", "x" * 32_768, "x" * 32_769, [], ["a"], ["a", ""], ["x" * 1025], ["a"] * 513, None, 1]),
    max_size=2,
)
CONSTRAINED = st.fixed_dictionaries(
    {"constraint": CONSTRAINTS | st.sampled_from([{"regex": "a"}, {"choice": ["a", "b"]}])},
    optional={
        "use_beam_search": st.booleans(),
        "temperature": st.just(0),
        "ignore_eos": st.booleans(),
        "min_tokens": st.sampled_from([0, 1]),
        "best_of": st.just(2),
    },
)
BODIES = st.dictionaries(st.sampled_from([*Payload.model_fields, "beam_width"]), VALUES, max_size=4)
BEAMS = st.fixed_dictionaries(
    {"use_beam_search": st.booleans()},
    optional={
        "n": st.integers(1, 3),
        "best_of": st.none() | st.integers(1, 3),
        "temperature": st.sampled_from([0, 0.0, 1.0]),
        "top_k": st.sampled_from([0, 5]),
        "top_p": st.sampled_from([1, 0.5]),
        "min_p": st.sampled_from([0, 0.5]),
        "seed": st.sampled_from([None, 0]),
        "logprobs": st.sampled_from([None, 0]),
        "prompt_logprobs": st.sampled_from([None, 0]),
        "max_tokens": st.sampled_from([None, 0, 1]),
        "stop": st.sampled_from([[], ["x"]]),
        "length_penalty": st.sampled_from([1, 1.0, 0.5]),
        "early_stopping": st.booleans(),
    },
)


def follows_rules(body: Doc) -> bool:
    """Apply the rules of a payload that no JSON Schema can state, as the document words them."""
    most, least, n = body.get("max_tokens"), body.get("min_tokens", 0), body.get("n", 1)
    if (most is not None and least > most) or (body.get("best_of") or n) < n:
        return False
    if most == 0 and (body.get("use_beam_search") or (body.get("best_of") or n) > n):
        return False
    if body.get("use_beam_search"):
        neutral = {
            "prompt_logprobs": None,
            "temperature": 0,
            "top_k": 0,
            "top_p": 1,
            "min_p": 0,
            "seed": None,
            "logprobs": None,
            "stop": [],
        }
    else:
        neutral = {"length_penalty": 1, "early_stopping": False}
    if body.get("constraint") is not None:
        neutral |= {"ignore_eos": False, "min_tokens": 0, "use_beam_search": False}
    return all(body.get(name, value) == value for name, value in neutral.items())


@given(BODIES | BEAMS | CONSTRAINED)
def test_the_schema_and_the_code_accept_the_same_payloads(body: Doc) -> None:
    """Except for the rules that no JSON Schema can state, which the document has in words."""
    for candidate in (body, {"prompt": [1], **body}):
        stated = validator(DOCUMENT, "RequestPayload").is_valid(candidate) and follows_rules(candidate)
        assert accepted(entry(payload=msgpack.packb(candidate)), "low") is stated


@given(
    st.dictionaries(
        st.sampled_from(sorted(ENTRY_FIELDS - {"payload"})) | st.text("abc", max_size=3),
        st.sampled_from(["", "1", "2", "r-1", "a:b", "low", "normal", "x" * 512, "x" * 513, "0" * 15, "0" * 16])
        | st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=5),
    )
)
def test_the_schema_and_the_code_accept_the_same_headers(headers: dict[str, str]) -> None:
    for candidate in (headers, {"id": "r", "v": "1", "deadline": "1", **headers}):
        stated = validator(DOCUMENT, "RequestHeaders").is_valid(candidate)
        fields = {name.encode(): value.encode() for name, value in candidate.items()} | {b"payload": b'{"prompt":[1]}'}
        stream_class = candidate.get("class", "low")
        assert accepted(fields, stream_class if stream_class in CLASSES else "low", now_ms=10**15) is stated


ENCODED = st.sampled_from(Form)
TOKENS = st.lists(st.integers(0, limits.MAX_TOKEN_ID), min_size=1, max_size=4).map(tuple)
RUNS = st.lists(st.builds(Run, st.integers(0, limits.MAX_CHOICES - 1), st.integers(0, 10**6), TOKENS), max_size=3).map(
    tuple
)
ENDINGS = st.lists(
    st.builds(
        Ending,
        st.none() | st.sampled_from(FinishReason),
        st.integers(0, 10**6),
        st.none() | st.integers(0, 10**6),
        st.none() | st.text(min_size=1) | st.integers(0, limits.MAX_TOKEN_ID),
    ),
    max_size=3,
).map(tuple)
USAGES = st.builds(Usage, *[st.integers(0, 10**6)] * 3)
EVENTS = st.one_of(
    st.builds(Output, RUNS),
    st.builds(Terminal, ENDINGS.filter(bool), USAGES, RUNS, timings=st.dictionaries(st.text(), st.floats(0, 1e9))),
    st.builds(Terminal, ENDINGS, USAGES, RUNS, st.sampled_from(ErrorCode), st.text(), st.none() | st.text()),
    st.builds(
        Started,
        worker=st.text(),
        model=st.text(),
        tenant=st.text(),
        priority_class=st.sampled_from(CLASSES),
        entry=st.text(),
        seed=st.integers(limits.MIN_SEED, limits.MAX_SEED),
        prompt_tokens=st.integers(0, limits.MAX_PROMPT_TOKENS),
        n=st.integers(1, limits.MAX_CHOICES),
        traceparent=st.none() | st.text(),
    ),
)


@given(EVENTS, ENCODED)
def test_every_written_event_is_described(event: Event, form: Form) -> None:
    _, kind, _, payload = encode_event(event, form)
    message = DOCUMENT["components"]["messages"][kind]
    body = json.loads(payload) if form is Form.JSON else msgpack.unpackb(payload)
    validator(DOCUMENT, message["payload"]["$ref"].rsplit("/", 1)[1]).validate(body)
    validator(DOCUMENT, message["headers"]["$ref"].rsplit("/", 1)[1]).validate({"type": kind})


# --- mutations ------------------------------------------------------------------------------------------------------

MEANING = {
    *("type", "enum", "pattern", "required", "additionalProperties", "default", "minimum", "maximum", "minItems"),
    *("maxItems", "minLength", "maxLength", "exclusiveMinimum", "key", "group", "groupStart", "address"),
    *("x-max-payload-bytes", "$ref"),
}


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return {"string": "integer", "object": "array", "hash": "string"}.get(value, value + "x")
    if isinstance(value, list):
        return value[:-1] if value else ["x"]
    return "x" if value is None else {"type": "null"}


def mutations(doc: Doc) -> Iterator[tuple[str, Doc]]:
    """Yield mutations: each meaningful value changed, each property removed, each property added once."""
    unchanged = pickle.dumps(doc)

    def walk(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        if isinstance(node, dict):
            for name, value in node.items():
                if name in {"examples", "x-rules", "servers", "info"}:
                    continue
                yield (*path, name)
                yield from walk(value, (*path, name))
        elif isinstance(node, list):
            for index, value in enumerate(node):
                yield from walk(value, (*path, index))

    for path in walk(doc, ()):
        inside_properties = len(path) > 1 and path[-2] == "properties"
        if not (inside_properties or (path[-1] in MEANING and path[-2:-1] != ("properties",))):
            continue
        mutant = pickle.loads(unchanged)
        parent: Any = mutant
        for part in path[:-1]:
            parent = parent[part]
        if inside_properties:
            del parent[path[-1]]
        else:
            parent[path[-1]] = changed(parent[path[-1]])
        yield ".".join(map(str, path)), mutant


def survives(doc: Doc) -> bool:
    given = pickle.dumps(doc)
    for check in CHECKS:
        try:
            check(pickle.loads(given))
        except Exception:
            return False
    return True


def test_no_mutation_of_the_document_survives() -> None:
    mutants = list(mutations(DOCUMENT))
    assert len(mutants) > 200
    assert [path for path, mutant in mutants if survives(mutant)] == []


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (limits, "MAX_PAYLOAD_BYTES", 1),
        (limits, "MAX_CHOICES", 17),
        (limits, "MIN_SEED", -7),
        (limits, "MAX_SEED", 7),
        (limits, "MAX_TOKEN_ID", 7),
        (limits, "MAX_TRACE_HEADER_LENGTH", 7),
        (limits, "MAX_DEADLINE_AHEAD_MS", 7),
        (limits, "PAYLOAD_BYTES_BESIDE", 7),
        (limits, "MAX_PAYLOAD_PARTS", 7),
        (limits, "PROTOCOL_VERSION", 2),
    ],
)
def test_a_changed_limit_of_the_code_fails(
    module: Any, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, value)
    assert not survives(DOCUMENT)
