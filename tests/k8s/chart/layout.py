"""Writes a tree of variants as a Helm template."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import yaml

from tests.k8s.chart.variants import ABSENT, Choice, Keyed

_STEP: Final = "  "
_Write = Callable[[Any, Any], Iterator[str]]


@dataclass(frozen=True)
class Action:
    """A scalar that Helm computes: the text of the actions."""

    text: str


@dataclass(frozen=True)
class Replaced:
    """The value at a path of values.yaml if it is set; otherwise the node."""

    value: str
    otherwise: Any = ABSENT
    scalar: bool = False


@dataclass(frozen=True)
class Extended:
    """The items of a list, followed by those of a list in values.yaml."""

    items: Keyed
    value: str


@dataclass(frozen=True)
class Block:
    """Lines that Helm computes, indented by INDENT spaces; as a literal block or, with `data`, as a mapping or list."""

    text: str
    data: bool = False


def template(tree: dict[str, Any]) -> str:
    """Return the template of one object."""
    return "\n".join(_entries(tree, "")) + "\n"


def _entries(mapping: dict[str, Any], indent: str) -> Iterator[str]:
    for nodes in _runs(mapping.items()):
        yield from _variants(nodes, indent, lambda key, value: _entry(key, value, indent))


def _items(items: Any, indent: str) -> Iterator[str]:
    for nodes in _runs(items.items() if isinstance(items, Keyed) else enumerate(items)):
        yield from _variants(nodes, indent, lambda _, value: _item(value, indent))


def _runs(nodes: Iterable[tuple[Any, Any]]) -> Iterator[list[tuple[Any, Any]]]:
    """Return neighbors under the same conditions together, every other node alone."""
    for _, run in groupby(enumerate(nodes), lambda one: _conditions(one[1][1]) or one[0]):
        yield [node for _, node in run]


def _conditions(node: Any) -> tuple[Any, ...] | None:
    if not isinstance(node, Choice):
        return None
    return (_left_out(node), *(condition for condition, _ in node.cases))


def _left_out(choice: Choice) -> bool:
    return all(value is ABSENT for _, value in choice.cases)


def _variants(nodes: list[tuple[Any, Any]], indent: str, write: _Write) -> Iterator[str]:
    """Return the result of `write` for each node, or for each of its cases."""
    (key, node), *_ = nodes
    if isinstance(node, Replaced):
        yield f"{indent}{{{{- with .Values.{node.value} }}}}"
        value = Action("{{ . | quote }}") if node.scalar else Block("{{- toYaml . | nindent INDENT }}", data=True)
        yield from write(key, value)
        if node.otherwise is not ABSENT:
            yield f"{indent}{{{{- else }}}}"
            yield from _variants([(key, node.otherwise)], indent, write)
        yield f"{indent}{{{{- end }}}}"
    elif isinstance(node, Choice):
        yield from _cases(nodes, indent, write)
    elif node is not ABSENT:
        yield from write(key, node)


def _cases(nodes: list[tuple[Any, Any]], indent: str, write: _Write) -> Iterator[str]:
    """Write cases as if, else if, else; a single `if not` if every case omits the nodes."""

    def branch(values: list[tuple[Any, Any]]) -> Iterator[str]:
        for one in values:
            yield from _variants([one], indent, write)

    first: Choice = nodes[0][1]
    if _left_out(first):
        conditions = [f"({condition})" for condition, _ in reversed(first.cases)]
        joined = f"(or {' '.join(conditions)})" if len(conditions) > 1 else conditions[0]
        yield f"{indent}{{{{- if not {joined} }}}}"
    else:
        for number, (condition, _) in enumerate(first.cases):
            yield f"{indent}{{{{- {'else if' if number else 'if'} {condition} }}}}"
            yield from branch([(key, choice.cases[number][1]) for key, choice in nodes])
        if any(choice.otherwise is not ABSENT for _, choice in nodes):
            yield f"{indent}{{{{- else }}}}"
    yield from branch([(key, choice.otherwise) for key, choice in nodes])
    yield f"{indent}{{{{- end }}}}"


def _entry(key: str, value: Any, indent: str) -> Iterator[str]:
    head = f"{indent}{_scalar(key)}:"
    match value:
        case Action(text):
            yield f"{head} {text}"
        case Block(text, data):
            yield head if data else f"{head} |"
            yield from (f"{indent}{_STEP}{line.replace('INDENT', str(len(indent) + 2))}" for line in text.split("\n"))
        case Extended(items, more):
            yield head
            yield from _items(items, indent + _STEP)
            yield f"{indent}{_STEP}{{{{- with .Values.{more} }}}}"
            yield f"{indent}{_STEP}{{{{- toYaml . | nindent {len(indent) + 2} }}}}"
            yield f"{indent}{_STEP}{{{{- end }}}}"
        case Keyed() | list():
            yield head if value else f"{head} []"
            yield from _items(value, indent + _STEP)
        case dict():
            yield head if value else f"{head} {{}}"
            yield from _entries(value, indent + _STEP)
        case str() if "\n" in value:
            yield f"{head} {_literal(value)}"
            yield from (f"{indent}{_STEP}{_escaped(line)}".rstrip() for line in value.rstrip("\n").split("\n"))
        case _:
            yield f"{head} {_escaped(_scalar(value))}"


def _item(value: Any, indent: str) -> Iterator[str]:
    """Write an item whose first line follows the dash; it always has one, because names are under no condition."""
    if isinstance(value, dict):
        first, *rest = _entries(value, indent + _STEP)
        yield f"{indent}- {first.lstrip()}"
        yield from rest
    elif isinstance(value, Action):
        yield f"{indent}- {value.text}"
    else:
        yield f"{indent}- {_escaped(_scalar(value))}"


def _literal(text: str) -> str:
    return "|" if text.endswith("\n") else "|-"


def _scalar(value: Any) -> str:
    """Write a scalar in one line, quoted if necessary."""
    if isinstance(value, str) and "\n" not in value:
        plain = yaml.safe_dump(value, width=10**6, allow_unicode=True).removesuffix("...\n").strip()
        return plain if "\n" not in plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def _escaped(text: str) -> str:
    return text.replace("{{", '{{ "{{" }}')
