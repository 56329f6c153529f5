"""One tree for all variants of an object: a component's changes are choices under that component's condition."""

from dataclasses import dataclass
from typing import Any, Final

KEYS: Final = ("name", "mountPath", "alert", "record")
"""What tells the items of a list apart, where all of them have it."""


class Absent:
    """A node that a variant lacks."""


ABSENT: Final = Absent()


class Keyed(dict[str, Any]):
    """A list whose items are identified by a key: the items by that key, in order."""


@dataclass
class Choice:
    """The value of the first true condition, or else `otherwise`; either may be ABSENT."""

    cases: list[tuple[str, Any]]
    otherwise: Any


def variants(plain: Any) -> Any:
    """Return a copy of plain data in which lists of named items are Keyed."""
    if isinstance(plain, dict):
        return {key: variants(value) for key, value in plain.items()}
    if isinstance(plain, list):
        key = next((key for key in KEYS if _names(plain, key)), None)
        items = [variants(item) for item in plain]
        return Keyed(zip(_keys(plain, key), items, strict=True)) if key else items
    return plain


def amend(tree: Any, before: Any, after: Any, condition: str) -> Any:
    """Return `tree` with the changes from `before` to `after`, under `condition`. Raises ValueError on disagreement."""
    if before == after:
        return tree
    if _alike(tree, before, after):
        for key in (*before, *(key for key in after if key not in before)):
            tree[key] = amend(tree.get(key, ABSENT), before.get(key, ABSENT), after.get(key, ABSENT), condition)
        return tree
    if isinstance(tree, Choice):
        if isinstance(after, dict) and any(isinstance(value, dict) for _, value in tree.cases):
            raise ValueError(f"under {condition} comes what another component adds as well: {after}")
        return Choice([(condition, after), *tree.cases], tree.otherwise)
    return Choice([(condition, after)], tree)


def _alike(tree: Any, before: Any, after: Any) -> bool:
    return all(isinstance(one, dict) for one in (tree, before, after)) and type(before) is type(after)


def _names(items: list[Any], key: str) -> bool:
    if not items or not all(isinstance(item, dict) for item in items):
        return False
    found = _keys(items, key)
    return None not in found and len(set(found)) == len(found)


def _keys(items: list[Any], key: str | None) -> list[Any]:
    return [item.get(key) for item in items]
