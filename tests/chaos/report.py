"""The result of a run: a table, and the same with more detail as JSON."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.chaos.checker import KINDS, Findings
from tests.chaos.injector import Fault
from tests.chaos.record import Log, Seen

_MOST_SHOWN = 30
_AFTER_S = 10.0
_STANDSTILL_S = 3.0


def stalls(faults: Sequence[Fault], logs: Sequence[Log]) -> dict[str, float]:
    """Return by kind of fault the longest pause of a reply log, in seconds, that began during such a fault."""
    gaps = [(a, b) for log in logs for a, b in zip(log.times, log.times[1:], strict=False) if b - a > 0.1]
    longest: dict[str, float] = {}
    for fault in faults:
        felt = (b - a for a, b in gaps if a <= fault.end and fault.begin <= b <= fault.end + _AFTER_S)
        longest[fault.kind] = max(longest.get(fault.kind, 0.0), max(felt, default=0.0))
    return {kind: round(seconds, 2) for kind, seconds in sorted(longest.items())}


def summarize(
    head: dict[str, Any],
    begin: float,
    requests: Sequence[Seen],
    logs: Sequence[Log],
    faults: Sequence[Fault],
    findings: Findings,
) -> dict[str, Any]:
    """Return the figures of a run that began at `begin`; the numbers that must be 0 come first."""
    done = [fault for fault in faults if not fault.note]
    return {
        **head,
        "requests": sum(seen.accepted for seen in requests),
        "faults": len(done),
        **{kind: findings.count(kind) for kind in KINDS},
        "behaviours": dict(Counter(seen.behaviour for seen in requests if seen.accepted)),
        "ends": dict(findings.ends),
        "faults_by_kind": dict(Counter(fault.kind for fault in done)),
        "faults_left_out": dict(Counter(f"{fault.kind}: {fault.note}" for fault in faults if fault.note)),
        "longest_pause_s": stalls(done, logs),
        "events": sum(len(log.watched) for log in logs),
        "cancels_checked": findings.cancels_checked,
        "most_events_after_cancel": findings.most_events_after_cancel,
        "fault_log": [
            f"{fault.begin - begin:.1f} to {fault.end - begin:.1f} s: {fault.kind} {fault.target} {fault.note}".rstrip()
            for fault in faults
        ],
        "violations": [{"kind": one.kind, "subject": one.subject, "detail": one.detail} for one in findings.violations],
    }


def table(summary: dict[str, Any]) -> str:
    """Return the figures as a readable table."""
    kinds = sorted(set(summary["faults_by_kind"]) | set(summary["longest_pause_s"]))
    width = max(map(len, (*kinds, *KINDS, "requests")))
    lines = [f"{'fault':{width}}  times  longest pause"]
    for kind in kinds:
        pause_s = summary["longest_pause_s"].get(kind, 0.0)
        lines.append(f"{kind:{width}}  {summary['faults_by_kind'].get(kind, 0):5}  {pause_s:11.2f} s")
    if summary["losses"]["times"]:
        said = "Redis may have lost acknowledged writes {times} times, and has lost {entries} entries of reply logs, "
        said += "those of {longest_s} s at most; {requests_told} clients were told of a loss"
        lines.append(said.format(**summary["losses"]))
    lines += [f"{name}: left out {times} times" for name, times in summary["faults_left_out"].items()]
    lines += ["", f"{'requests':{width}}  {summary['requests']:5}", f"{'faults':{width}}  {summary['faults']:5}"]
    lines += [f"{kind:{width}}  {summary[kind]:5}" for kind in KINDS]
    if summary["longest_standstill_s"] > _STANDSTILL_S:
        lines.append(f"The machine stood still for {summary['longest_standstill_s']} s: what came after proves little.")
    shown = summary["violations"][:_MOST_SHOWN]
    lines += [f"  {one['kind']}: {one['subject']}: {one['detail']}" for one in shown]
    if len(summary["violations"]) > len(shown):
        lines.append(f"  and {len(summary['violations']) - len(shown)} more")
    return "\n".join(lines)


def write_json(path: str, summary: dict[str, Any]) -> None:
    """Write the figures to a file."""
    with open(path, "w") as file:
        json.dump(summary, file, indent=1)
