"""The figures of one run, computed from the outcomes of its requests."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from orcastream.bench.figures.outcome import Objectives, Outcome
from orcastream.bench.figures.spread import in_ms

Figures = dict[str, Any]
"""Plain values, ready for JSON."""


def measure(outcomes: Sequence[Outcome], begun_s: float, until_s: float, objectives: Objectives) -> Figures:
    """Return rates, latencies in milliseconds, goodput, and latencies by class, tenant and group.

    Output tokens count if they arrived during the load, from `begun_s` to `until_s`, prompts if their first token did;
    latencies are those of complete answers.
    """
    seconds = until_s - begun_s
    complete = [outcome for outcome in outcomes if outcome.complete]
    input_tokens = sum(outcome.prompt_tokens for outcome in complete)
    came = sum(outcome.tokens_until(until_s) for outcome in outcomes)
    read = sum(outcome.prompt_tokens for outcome in outcomes if outcome.tokens_until(until_s))
    return {
        "requests": len(outcomes),
        "complete": len(complete),
        "errors": dict(Counter(outcome.error for outcome in outcomes if outcome.error is not None)),
        "duration_s": seconds,
        "input_tokens": input_tokens,
        "output_tokens": sum(outcome.tokens for outcome in complete),
        "requests_per_s": sum(_ended_by(outcome, until_s) for outcome in complete) / seconds,
        "input_tokens_per_s": read / seconds,
        "output_tokens_per_s": came / seconds,
        "total_tokens_per_s": (read + came) / seconds,
        **latencies(complete),
        "goodput": _goodput(outcomes, begun_s, until_s, objectives),
        "prompt_tokens_cached": sum(outcome.cached_tokens for outcome in outcomes),
        "by_class": _each(complete, lambda outcome: outcome.request.priority_class),
        "by_tenant": _each(complete, lambda outcome: outcome.request.tenant),
        "by_group": _each(complete, lambda outcome: outcome.request.group),
    }


def latencies(outcomes: Iterable[Outcome]) -> Figures:
    """Return TTFT, TBT, TPOT, E2E and normalized latency, each with mean, percentiles, maximum and count."""
    complete = [outcome for outcome in outcomes if outcome.complete]
    return {
        "ttft_ms": in_ms(outcome.ttft_s for outcome in complete if outcome.ttft_s is not None),
        "tbt_ms": in_ms(gap for outcome in complete for gap in outcome.gaps_s),
        "tpot_ms": in_ms(outcome.tpot_s for outcome in complete if outcome.tpot_s is not None),
        "e2e_ms": in_ms(outcome.e2e_s for outcome in complete if outcome.e2e_s is not None),
        "normalized_latency_ms": in_ms(
            outcome.normalized_latency_s for outcome in complete if outcome.normalized_latency_s is not None
        ),
    }


def _ended_by(outcome: Outcome, until_s: float) -> bool:
    return outcome.ended_s is not None and outcome.ended_s <= until_s


def _goodput(outcomes: Sequence[Outcome], begun_s: float, until_s: float, objectives: Objectives) -> Figures | None:
    """Return the requests that met the objectives, per second of load and as a share of all; None if there are none."""
    if not objectives:
        return None
    good = [outcome for outcome in outcomes if outcome.meets(objectives)]
    in_time = sum(_ended_by(outcome, until_s) for outcome in good)
    return {"requests_per_s": in_time / (until_s - begun_s), "share": len(good) / max(1, len(outcomes))}


def _each(outcomes: Sequence[Outcome], name_of: Callable[[Outcome], str]) -> Figures:
    """Return latencies by name if there is more than one."""
    names = sorted({name_of(outcome) for outcome in outcomes})
    if len(names) < 2:
        return {}
    each = {name: [outcome for outcome in outcomes if name_of(outcome) == name] for name in names}
    return {name: {"complete": len(own), **latencies(own)} for name, own in each.items()}
