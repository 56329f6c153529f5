"""PromQL expressions checked against the metrics that the code emits: names, types, labels."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import promql_parser as promql

from orcastream.telemetry import names
from orcastream.telemetry.names import Kind, Metric
from orcastream.telemetry.prometheus import prometheus_label, prometheus_series

Labels = frozenset[str]

RESOURCE_LABELS: Labels = frozenset({"job", "instance"})
"""Every metric has them, whichever way it came."""

_OVER_COUNTERS = frozenset({"rate", "increase"})
_OVER_GAUGES = frozenset(
    {None, "last_over_time", "max_over_time", "min_over_time", "avg_over_time", "quantile_over_time"}
)
_ALONE = "nothing but itself"
_AGGREGATIONS = frozenset({"sum", "max", "min", "avg", "count"})
_SET_OPERATIONS = frozenset({"and", "unless"})


class Series(StrEnum):
    """The kind of numbers under a name."""

    COUNTER = "counter"
    BUCKET = "bucket"
    GAUGE = "gauge"


@dataclass(frozen=True)
class Known:
    """One name that can be queried, with all labels it may have."""

    series: Series
    labels: Labels


class WrongQuery(ValueError):
    """An expression that would find nothing, or aggregate what must not be aggregated."""


def _known(metric: Metric) -> Iterator[tuple[str, Known]]:
    labels = RESOURCE_LABELS | {prometheus_label(attribute) for attribute in metric.attributes}
    for name in prometheus_series(metric):
        if metric.kind is Kind.HISTOGRAM and name.endswith("_bucket"):
            yield name, Known(Series.BUCKET, labels | {"le"})
        else:
            yield name, Known(Series.GAUGE if metric.kind is Kind.GAUGE else Series.COUNTER, labels)


EMITTED: Mapping[str, Known] = dict(known for metric in names.METRICS for known in _known(metric))
"""Every series that the code emits, by its name in Prometheus."""


def parse(expression: str) -> promql.Expr:
    """Return the expression with Grafana's intervals filled in. Raises ValueError if it is not PromQL."""
    return promql.parse(re.sub(r"\$__(rate_interval|interval|range)", "5m", expression))


def matchers_in(expression: str) -> list[tuple[str, str, str]]:
    """Yield every label filter: series, label, value."""
    return [
        (selector.name, matcher.name, matcher.value)
        for selector in _selectors(parse(expression))
        for matcher in selector.matchers.matchers
    ]


def series_in(expression: str) -> set[str]:
    """Return the names of all queried series."""
    return {selector.name for selector in _selectors(parse(expression))}


def _selectors(node: Any) -> Iterator[promql.VectorSelector]:
    if isinstance(node, promql.VectorSelector):
        yield node
    parts = [getattr(node, name, None) for name in ("lhs", "rhs", "expr", "param", "vector_selector")]
    for part in (*parts, *getattr(node, "args", ())):
        if isinstance(part, promql.Expr):
            yield from _selectors(part)


def check(expression: str, known: Mapping[str, Known] = EMITTED) -> Labels:
    """Return the labels of the expression's result. Raises WrongQuery with the reason if the expression is wrong."""
    labels = _Check(known).labels(parse(expression)) or frozenset()
    if "le" in labels:
        raise WrongQuery(f"buckets are shown as they are: {expression}")
    return labels


def check_selector(selector: str) -> Labels:
    """Return the labels of one series, queried alone as by a dashboard variable."""
    return _Check(EMITTED).labels(parse(selector), _ALONE) or frozenset()


class _Check:
    """Walks an expression from its selectors upwards. A scalar has no labels at all: None."""

    def __init__(self, known: Mapping[str, Known]) -> None:
        self._known = known

    def labels(self, node: Any, within: str | None = None) -> Labels | None:
        """Return the labels of `node`, an argument of the function `within`."""
        match node:
            case promql.VectorSelector():
                return self._selector(node, within)
            case promql.MatrixSelector():
                return self._selector(node.vector_selector, within)
            case promql.Call():
                return self._call(node)
            case promql.AggregateExpr():
                return self._aggregate(node)
            case promql.BinaryExpr():
                return self._binary(node)
            case promql.ParenExpr():
                return self.labels(node.expr, within)
            case promql.NumberLiteral():
                return None
        raise WrongQuery(f"{type(node).__name__}: this check does not know it")

    def _selector(self, node: promql.VectorSelector, within: str | None) -> Labels:
        if node.name not in self._known:
            raise WrongQuery(f"{node.name}: nothing emits it")
        known = self._known[node.name]
        filtered = {matcher.name for matcher in node.matchers.matchers}
        if filtered - known.labels:
            raise WrongQuery(f"{node.name} has no label {sorted(filtered - known.labels)}")
        allowed = _OVER_GAUGES if known.series is Series.GAUGE else _OVER_COUNTERS
        if within not in allowed | {_ALONE}:
            raise WrongQuery(f"{node.name} is a {known.series}, not to be read through {within or 'nothing'}")
        return known.labels - ({"le"} & filtered)

    def _call(self, node: promql.Call) -> Labels | None:
        name = node.func.name
        if name == "histogram_quantile":
            labels = self.labels(node.args[1]) or frozenset()
            if "le" not in labels:
                raise WrongQuery("histogram_quantile without buckets by le")
            return labels - {"le"}
        if name in _OVER_COUNTERS | _OVER_GAUGES:
            return self.labels(node.args[-1], name)
        if name == "vector":
            return frozenset()
        if name in ("scalar", "absent"):
            self.labels(node.args[0])
            return None if name == "scalar" else frozenset()
        raise WrongQuery(f"{name}(): this check does not know it")

    def _aggregate(self, node: promql.AggregateExpr) -> Labels:
        if str(node.op) not in _AGGREGATIONS:
            raise WrongQuery(f"{node.op}: this check does not know it")
        inner = self.labels(node.expr) or frozenset()
        by = frozenset(node.modifier.labels) if node.modifier else frozenset()
        if node.modifier and node.modifier.type != promql.AggModifierType.By:
            raise WrongQuery("'without' keeps whatever labels come along: say 'by'")
        if by - inner:
            raise WrongQuery(f"grouped by {sorted(by - inner)}, which is not a label there")
        if "le" in inner - by:
            raise WrongQuery("buckets of different bounds are added up")
        return by

    def _binary(self, node: promql.BinaryExpr) -> Labels | None:
        operation = str(node.op)
        if operation == "unless" and self._appeared(node):
            return self._selector(_last_seen(node.lhs), _ALONE) & self._selector(_last_seen(node.rhs), _ALONE)
        if operation == "or" and (counter := _grown(node)) is not None:
            return self._selector(counter, _ALONE)
        left, right = self.labels(node.lhs), self.labels(node.rhs)
        if left is None or right is None:
            return right if left is None else left
        if operation == "or":
            return left & right
        on = self._matched_on(node)
        if on is None and left != right:
            raise WrongQuery(f"{operation} between {sorted(left)} and {sorted(right)}: nothing matches")
        if on is not None and on - (left & right):
            raise WrongQuery(f"{operation} on {sorted(on - (left & right))}, which is not a label of both sides")
        return left if on is None or operation in _SET_OPERATIONS else on

    @staticmethod
    def _matched_on(node: promql.BinaryExpr) -> Labels | None:
        if node.modifier is None or node.modifier.matching is None:
            return None
        if node.modifier.matching.type != promql.LabelModifierType.Include or node.modifier.group_labels is not None:
            raise WrongQuery("'ignoring' and 'group_left' are not known to this check: say 'on'")
        return frozenset(node.modifier.matching.labels)

    def _appeared(self, node: promql.BinaryExpr) -> bool:
        """`m unless m offset 15m`: a new counter counts from zero, which increase() misses."""
        now, before = _last_seen(node.lhs), _last_seen(node.rhs)
        if now is None or before is None:
            return False
        return now.name == before.name and now.offset is None and before.offset is not None


def _grown(node: promql.BinaryExpr) -> promql.VectorSelector | None:
    """Return the counter of `(m - m offset 1m >= 0) or m` and of `(m - m offset 1m >= 0) or (m and m offset 1m)`, its
    growth without extrapolation, or after a reset its value; None for anything else.
    """
    match _bare(node.lhs), _bare(node.rhs):
        case promql.BinaryExpr(lhs=promql.BinaryExpr() as growth, rhs=promql.NumberLiteral(val=0)) as bound, begun_anew:
            counter, before = growth.lhs, _last_seen(growth.rhs)
            last = begun_anew.lhs if isinstance(begun_anew, promql.BinaryExpr) else begun_anew
            if not isinstance(counter, promql.VectorSelector) or before is None or before.offset is None:
                return None
            of_one = isinstance(last, promql.VectorSelector) and counter.name == before.name == last.name
            return counter if (str(growth.op), str(bound.op)) == ("-", ">=") and of_one else None
    return None


def _bare(node: Any) -> Any:
    return node.expr if isinstance(node, promql.ParenExpr) else node


def _last_seen(node: Any) -> promql.VectorSelector | None:
    """Return the selector of `m`, or of `last_over_time(m[1d])`; None for anything else."""
    if isinstance(node, promql.Call) and node.func.name == "last_over_time":
        return node.args[0].vector_selector
    return node if isinstance(node, promql.VectorSelector) else None
