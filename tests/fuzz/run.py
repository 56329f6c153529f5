"""Malformed input at scale: `python -m tests.fuzz.run --count 100000 --seed 1 --json fuzz.json`, or `make fuzz`.

A gateway, a worker and Redis, real processes, get inputs from Hypothesis: entries of request streams, wake-ups and
keys, HTTP requests, and those that schemathesis derives from the gateway's own OpenAPI document. Exit status 0: nothing
ended, failed, got stuck, grew by more than 32 MiB in the second half, or was held for more than 50 ms; 1: something
did, and the smallest input that causes it is reported.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.calls import CALLS
from tests.fuzz.entries import COMMANDS
from tests.fuzz.memory_curve import MemoryCurve
from tests.fuzz.schema_cases import cases, try_case
from tests.fuzz.site import Site
from tests.fuzz.target import KINDS, Target, Violation

_ROUND: Final = 500
"""Inputs of one kind in a row; each round has a seed of its own."""
_MEAN_LENGTH: Final = 20
"""Of the lists of inputs that are given together."""
_MOST_VIOLATIONS: Final = 20


def fuzz(
    target: Target, count: int, seed_: int, minutes: float = float("inf"), memory: MemoryCurve | None = None
) -> list[Violation]:
    """Give the target `count` inputs, or as many as `minutes` allow; return violations with their smallest inputs."""
    until = time.monotonic() + minutes * 60
    found: list[Violation] = []
    kinds = _kinds(target)
    shares = {"entries": 0.5, "calls": 0.45, "schemathesis": 0.05}
    size = min(_ROUND, max(10, count // 10))
    given_, number = dict.fromkeys(shares, 0), 0
    while sum(given_.values()) < count and len(found) < _MOST_VIOLATIONS and time.monotonic() < until:
        kind = min(shares, key=lambda name: given_[name] / shares[name])
        before = target.total
        examples = size if kind == "schemathesis" else size // _MEAN_LENGTH
        violation = _round(*kinds[kind], examples=examples, seed_=seed_ * 10**6 + number)
        given_[kind] += max(1, target.total - before)
        number += 1
        if violation is not None:
            found.append(target.crash or violation)
            print(found[-1], flush=True)
            if target.crash is not None:
                return found
        if memory is not None:
            memory.given(sum(given_.values()))
    return found + (memory.grown() if memory is not None else [])


def _kinds(target: Target) -> dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], None]]]:
    return {
        "entries": (_lists(COMMANDS), target.write),
        "calls": (_lists(CALLS), target.call),
        "schemathesis": (cases(target.site.gateway.url), lambda case: try_case(target, case)),
    }


def _lists(inputs: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Generate lists of one to many; Hypothesis' own lists are mostly short."""
    lengths = st.integers(1, 2 * _MEAN_LENGTH)
    return lengths.flatmap(lambda length: st.lists(inputs, min_size=length, max_size=length))


def _round(
    strategy: st.SearchStrategy[Any], give: Callable[[Any], None], *, examples: int, seed_: int
) -> Violation | None:
    @seed(seed_)
    @settings(
        max_examples=max(1, examples),
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
    )
    @given(strategy)
    def attempt(made: Any) -> None:
        give(made)

    try:
        attempt()
    except Violation as violation:
        return violation
    except BaseExceptionGroup as group:  # not reproducible each time
        first = next((one for one in group.exceptions if isinstance(one, Violation)), None)
        if first is None:
            raise
        return first
    return None


def figures(target: Target, found: list[Violation], memory: MemoryCurve, seconds: float) -> dict[str, Any]:
    """Return the figures of a run."""
    return {
        "inputs": target.total,
        **target.counts,
        "dead_letters": target.dead_letters,
        "answers": dict(sorted(target.answers.items())),
        **{kind: sum(violation.kind == kind for violation in found) for kind in KINDS},
        "longest_held_ms": {name: round(held * 1000, 1) for name, held in target.longest_held_s.items()},
        "held_together_ms": round(target.held_together_s * 1000, 1),
        "longest_wait_ms": round(target.longest_wait_s * 1000, 1),
        "memory_mib": memory.mib,
        "seconds": round(seconds, 1),
        "violations": [str(violation)[:3000] for violation in found],
    }


def still_serves(site: Site) -> bool:
    """Return whether a valid request is answered."""
    body = {"model": site.keys.model, "prompt": "Count from 1 to 3", "max_tokens": 3}
    return httpx.post(f"{site.gateway.url}/v1/completions", json=body, timeout=30).status_code == 200


def main(arguments: list[str]) -> int:
    """Run the fuzzer and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="inputs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="time limit")
    parser.add_argument("--json", default=None, help="where to write the figures")
    options = parser.parse_args(arguments)
    site = Site()
    target = Target(site)
    memory, started = MemoryCurve(site.memory_bytes, options.count), time.monotonic()
    try:
        found = fuzz(target, options.count, options.seed, options.minutes, memory)
        if not any(violation.kind == "crash" for violation in found) and not still_serves(site):
            found.append(Violation("stuck", "a good request is not answered any more"))
        told = figures(target, found, memory, time.monotonic() - started)
    finally:
        target.close()
        site.close()
    text = json.dumps(told, indent=2)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
