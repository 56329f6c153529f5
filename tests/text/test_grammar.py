"""Constraints that cannot be followed exactly are refused with the position; others are followed byte by byte."""

import json
import random
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from orcastream.schemas.constraint import Constraint
from orcastream.schemas.errors import InvalidRequest, without_values
from orcastream.text import grammar as grammars
from orcastream.text import matcher as matchers
from orcastream.text.grammar import check_constraint
from orcastream.text.matcher import ConstraintFailed, Matcher
from orcastream.text.tokenizer import Tokenizer
from orcastream.text.vocabulary import NoVocabulary, Vocabulary
from tests.text import tiny_tokenizers


def schema(**parts: object) -> Constraint:
    return Constraint(json_schema=json.dumps(parts))


@pytest.mark.parametrize(
    ("constraint", "field", "why"),
    [
        (
            schema(type="object", properties={"a": {"type": "array", "items": {"type": "strin"}}}),
            "constraint.json_schema.properties.a.items",
            "Invalid type: strin",
        ),
        (
            schema(properties={"a": {"$ref": "#/$defs/x"}}, **{"$defs": {"y": {}, "x": {"uniqueItems": True}}}),
            "constraint.json_schema.$defs.x",
            'Unimplemented keys: ["uniqueItems"]',
        ),
        (schema(anyOf=[{}, {"not": {}}]), "constraint.json_schema.anyOf.1", 'Unimplemented keys: ["not"]'),
        (schema(const={"type": "strin"}, format="frob", type="string"), "constraint.json_schema", "frob"),
        (schema(oneOf=[{"minLength": 1}, {"maxLength": 3}]), "constraint.json_schema", "oneOf"),
        (schema(**{"$ref": "http://example.org/x"}), "constraint.json_schema", "http://example.org/x"),
        (Constraint(json_schema="{"), "constraint.json_schema", "line 1 column 2"),
        (Constraint(json_schema="[]"), "constraint.json_schema", ""),
        (Constraint(json_schema='{"a": NaN}'), "constraint.json_schema", "NaN"),
        (Constraint(json_schema='{"items":' * 3000 + "{}" + "}" * 3000), "constraint.json_schema", "nested too deeply"),
        (Constraint(regex="ab(?=a)"), "constraint.regex", "character 3: look-around"),
        (Constraint(regex="a("), "constraint.regex", "character 2: unclosed group"),
        (Constraint(regex="a$b"), "constraint.regex", "End in regex"),
        (Constraint(grammar="start: b"), "constraint.grammar", 'line 1, column 8: unknown name: "b"'),
        (Constraint(grammar='start: "a"\nb: ('), "constraint.grammar", "line 2, column 5"),
        (Constraint(grammar="start: " + "(" * 9000), "constraint.grammar", "too deeply nested"),
        (Constraint(grammar='root ::= "a" ('), "constraint.grammar", ""),
        (Constraint(grammar='root ::= "a" b'), "constraint.grammar", ""),
        (Constraint(grammar="root ::= " + "(" * 9000), "constraint.grammar", "nested too deeply"),
        (Constraint(grammar='start: %json {"type": "strin"}'), "constraint.grammar", "Invalid type: strin"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_unsupported_constraint_is_refused_with_its_position(constraint: Constraint, field: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_constraint(constraint)
    assert caught.value.field == field
    assert why in str(caught.value)
    assert not why or why not in without_values(str(caught.value)), "the log quotes no part of it"


@pytest.mark.parametrize("constraint", [Constraint(regex="a"), schema(type="string", pattern="a")], ids=str)
def test_a_panic_of_llguidance_is_a_refusal(constraint: Constraint, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be caught as an Exception: the gateway would answer with a bare 500."""
    panic = type("PanicException", (BaseException,), {})("called unwrap")
    panicking = Mock(LLMatcher, wraps=LLMatcher, **{"validate_grammar.side_effect": panic})
    monkeypatch.setattr(grammars, "LLMatcher", panicking)
    with pytest.raises(InvalidRequest, match="llguidance fails on it: called unwrap"):
        check_constraint(constraint)


VOCABULARIES = {
    "byte level": lambda: tiny_tokenizers.byte_level(),
    "byte fallback": lambda: tiny_tokenizers.byte_fallback(),
    "without strip": lambda: tiny_tokenizers.byte_fallback(strip=False),
}


@pytest.fixture(scope="module", params=VOCABULARIES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(VOCABULARIES[request.param]())


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary.of(tokenizer, tokenizer.vocab_size + 5, tokenizer.eos_token_ids)


def allowed(matcher: Matcher, size: int) -> set[int]:
    mask = np.empty(-(-size // 32) * 4, dtype=np.uint8)
    matcher.fill(mask)
    return set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())


def texts(tokenizer: Tokenizer) -> dict[int, bytes]:
    """The bytes of every token that is text."""
    assert tokenizer.token_bytes is not None
    return {i: tokenizer.token_bytes[i] for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids}


def test_a_token_is_allowed_exactly_if_its_bytes_are(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Half characters, two tokens with the same bytes, special tokens that look like text: only the bytes decide."""
    size = tokenizer.vocab_size + 5
    matcher = Matcher.of(Constraint(regex="[a-zé世 ]+"), vocabulary)
    letters = [letter.encode() for letter in "abcdefghijklmnopqrstuvwxyzé世 "]

    def begins(piece: bytes) -> bool:
        while piece:
            if any(each.startswith(piece) for each in letters):
                return True
            first = next((each for each in letters if piece.startswith(each)), None)
            if first is None:
                return False
            piece = piece[len(first) :]
        return True

    pieces = texts(tokenizer)
    drops = drops_a_space(tokenizer)
    assert allowed(matcher, size) == {
        i for i, piece in pieces.items() if piece and begins(piece) and not (drops and piece.startswith(b" "))
    }
    (half,) = [i for i, piece in pieces.items() if piece == b"\xc3"]
    matcher.consume([half])
    assert allowed(matcher, size) == {
        i for i, piece in pieces.items() if piece[:1] == b"\xa9" and begins(b"\xc3" + piece)
    }


def test_a_schema_that_only_refers_to_itself_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(InvalidRequest, match="no text follows it"):
        Matcher.of(schema(**{"$ref": "#"}), vocabulary)


def drops_a_space(tokenizer: Tokenizer) -> bool:
    """Whether readers do not see a space at the start of an answer."""
    return tokenizer.decode(next([i] for i, piece in texts(tokenizer).items() if piece == b" the")) == "the"


@pytest.mark.parametrize("make", [tiny_tokenizers.byte_fallback, tiny_tokenizers.metaspace])
def test_an_answer_begins_with_no_token_that_is_cut_there(make: Callable[[], Any]) -> None:
    tokenizer = Tokenizer(make())
    vocabulary = Vocabulary.of(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    matcher, size = Matcher.of(Constraint(regex="[ a-z]*x?"), vocabulary), tokenizer.vocab_size
    token_bytes = tokenizer.token_bytes
    assert token_bytes is not None
    for token_id in allowed(matcher, size) - tokenizer.eos_token_ids:
        assert tokenizer.decode([token_id]).encode() == token_bytes[token_id]
    matcher.consume([min(allowed(matcher, size) - tokenizer.eos_token_ids)])
    assert any(token_bytes[token_id].startswith(b" ") for token_id in allowed(matcher, size))


@pytest.mark.parametrize("text", ["dog é 世", '{"a":"é"}', "  the", "<|im_end|>", "</s>", "é\n"])
def test_a_valid_text_is_accepted_however_it_is_cut(tokenizer: Tokenizer, vocabulary: Vocabulary, text: str) -> None:
    """Any allowed token may come next: the bytes are those of the text, then the end."""
    size = tokenizer.vocab_size + 5
    pieces = texts(tokenizer)
    if text.startswith(" ") and drops_a_space(tokenizer):
        with pytest.raises(InvalidRequest, match="no token of the model can begin an answer"):
            Matcher.of(Constraint(choice=[text]), vocabulary)
        return
    for pick in (min, max):
        matcher, said = Matcher.of(Constraint(choice=[text]), vocabulary), b""
        while not (found := allowed(matcher, size)) & tokenizer.eos_token_ids:
            token = pick(found)
            said += pieces[token]
            matcher.consume([token])
        assert found == tokenizer.eos_token_ids
        assert said == text.encode()


def test_a_grammar_may_be_gbnf(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    constraint = Constraint(grammar='root ::= "d" rest\nrest ::= "og" | "a" rest')
    check_constraint(constraint)
    matcher, ids = Matcher.of(constraint, vocabulary), {piece: i for i, piece in texts(tokenizer).items()}
    matcher.consume([ids[b"d"]])
    assert {ids[b"o"], ids[b"a"]} <= allowed(matcher, tokenizer.vocab_size)
    assert ids[b"d"] not in allowed(matcher, tokenizer.vocab_size)


def test_answers_advance_independently(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    size = tokenizer.vocab_size + 5
    made = Matcher.of(Constraint(choice=["dog", "é"]), vocabulary)
    first, second = made.another(), made.another()
    before = allowed(first, size)
    ids = {piece: i for i, piece in texts(tokenizer).items()}
    first.consume([ids[b"d"]])
    assert allowed(second, size) == before != allowed(first, size)
    second.consume([ids[b"\xc3"]])
    assert allowed(second, size) == {i for i, piece in texts(tokenizer).items() if piece == b"\xa9"}


def test_shared_data_is_prepared_before_several_answers(
    tokenizer: Tokenizer, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Matcher.of(Constraint(choice=["dog", "é"]), vocabulary)
    made.make_ready(3)
    ids = {piece: i for i, piece in texts(tokenizer).items()}
    new_state, later = matchers._new_state, []

    def note(*given: Any) -> Any:
        later.append(given)
        return new_state(*given)

    monkeypatch.setattr(matchers, "_new_state", note)
    answers = [made.another() for _ in range(3)]
    before = allowed(answers[2], tokenizer.vocab_size)
    for answer in answers[:2]:
        answer.consume([ids[b"d"]])
    assert allowed(answers[2], tokenizer.vocab_size) == before
    assert not later
    assert allowed(made.another(), tokenizer.vocab_size) == before
    assert len(later) == 1


def test_an_answer_that_grows_too_large_harms_no_other(
    tokenizer: Tokenizer, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matchers, "LIMITS", LLParserLimits(max_lexer_states=300, verbose_errors=False))
    made = Matcher.of(Constraint(regex="[ab]*a[ab]{14}"), vocabulary)
    ids, draw = {piece: i for i, piece in texts(tokenizer).items()}, random.Random(1)

    def goes_on(matcher: Matcher, steps: int) -> None:
        for _ in range(steps):
            matcher.consume([ids[draw.choice([b"a", b"b"])]])
            allowed(matcher, tokenizer.vocab_size)

    first, second = made.another(), made.another()
    with pytest.raises(ConstraintFailed, match="too many states"):
        goes_on(first, 3000)
    goes_on(second, 20)
    goes_on(made.another(), 20)


def test_a_violating_token_ends_the_matcher(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    ids = {piece: i for i, piece in texts(tokenizer).items()}
    with pytest.raises(ConstraintFailed):
        Matcher.of(Constraint(choice=["dog"]), vocabulary).consume([ids[b"b"]])


def test_every_end_token_may_end_the_answer() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    ends = frozenset({0, 2})
    matcher = Matcher.of(Constraint(regex="a*"), Vocabulary.of(tokenizer, tokenizer.vocab_size, ends))
    assert ends < allowed(matcher, tokenizer.vocab_size)


def test_without_a_vocabulary_the_reason_is_reported() -> None:
    opaque, plain = Tokenizer(tiny_tokenizers.opaque()), Tokenizer(tiny_tokenizers.byte_level())
    with pytest.raises(NoVocabulary, match="token by token"):
        Vocabulary.of(opaque, opaque.vocab_size, opaque.eos_token_ids)
    with pytest.raises(NoVocabulary, match="end-of-sequence"):
        Vocabulary.of(plain, plain.vocab_size, frozenset())


def test_special_tokens_in_a_grammar_are_the_models() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    vocabulary = Vocabulary.of(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    matcher = Matcher.of(Constraint(grammar='start: <|im_start|> "a"'), vocabulary)
    assert allowed(matcher, tokenizer.vocab_size) == {1}
    with pytest.raises(InvalidRequest, match="unknown special token"):
        Matcher.of(Constraint(grammar="start: <|nonsense|>"), vocabulary)
