"""Summary of several runs: median, minimum and maximum of each figure, and ratios of medians."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]

_NOT_COMPARED = ("requests", "complete", "input_tokens", "output_tokens", "count", "errors")


def medians(runs: Sequence[Figures]) -> dict[str, Any]:
    """Return the median over `runs` of every number at any depth; other values are taken from the first run."""
    return _fold(runs, statistics.median)


def extremes(runs: Sequence[Figures]) -> dict[str, Any]:
    """Return `[lowest, highest]` over `runs` of every number."""
    return _fold(runs, lambda values: [min(values), max(values)], keep=False)


def ratios(first: Figures, other: Figures) -> dict[str, Any]:
    """Return the ratio of each number of `other` to that of `first`, if both have it and the latter is not 0."""
    found: dict[str, Any] = {}
    for name, value in other.items():
        base = first.get(name)
        if name in _NOT_COMPARED or base is None:
            continue
        if isinstance(value, Mapping) and isinstance(base, Mapping):
            if inner := ratios(base, value):
                found[name] = inner
        elif _is_number(value) and _is_number(base) and base:
            found[name] = value / base
    return found


def _fold(runs: Sequence[Figures], summary: Callable[[list[float]], Any], *, keep: bool = True) -> dict[str, Any]:
    folded: dict[str, Any] = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        values = [run[name] for run in runs if run.get(name) is not None]
        if values and all(isinstance(value, Mapping) for value in values):
            folded[name] = _fold(values, summary, keep=keep)
        elif values and all(map(_is_number, values)):
            folded[name] = summary(values)
        elif keep:
            folded[name] = values[0] if values else None
    return folded


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
