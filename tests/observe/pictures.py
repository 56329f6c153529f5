"""Pictures for the documentation: the panels, and the time spent in two requests."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

from orcastream.bench.figures.svg import STYLE, write_svg
from orcastream.telemetry.names import Attribute, Span, SpanEvent
from tests.observe.panels import filled_in, queries
from tests.observe.site import ObservedService
from tests.observe.story import Story
from tests.telemetry.otlp_receiver import OtlpReceiver, ReceivedSpan

_CREATOR: Final = "python -m tests.observe.run --pictures"
_SHOWN: Final = (
    ("service", "Workers", "workers"),
    ("engine", "Running", "running"),
    ("service", "In the queue", "requests"),
    ("service", "Tokens per second", "{{gen_ai_token_type}}"),
    ("service", "Stalls", "{{orcastream_gap}}"),
)
_COLOURS: Final = {"scraping": "#2d5f8a", "OTLP": "#b4472e"}
_OF_SERVICE: Final = {"orcastream-gateway": "#4a5568", "orcastream-worker": "#2d5f8a"}
_ORDER: Final = (Span.SEND, Span.PROCESS, Span.QUEUE, Span.WAIT, Span.PREFILL, Span.DECODE, Span.PUBLISH)
_DEAD: Final = "#b4472e"
_TOGETHER_NS: Final = 5_000_000_000
"""Requests of one worker that died are taken over within this time."""


def draw(service: ObservedService, story: Story, begun_s: float, end_s: float, directory: Path) -> None:
    """Draw `observed.svg`, `trace_request.svg` and `trace_takeover.svg`."""
    with pyplot.rc_context(STYLE):
        write_svg(_panels(service, story, begun_s, end_s), directory / "observed.svg", _CREATOR)
        for name, trace in (("request", _undisturbed(service.receiver)), ("takeover", _taken_over(service.receiver))):
            write_svg(_gantt(trace), directory / f"trace_{name}.svg", _CREATOR)
        pyplot.close("all")


def _panels(service: ObservedService, story: Story, begun_s: float, end_s: float) -> Any:
    figure, axes = pyplot.subplots(len(_SHOWN), 1, figsize=(9, 8), sharex=True, layout="constrained")
    for axis, (dashboard, panel, legend) in zip(axes, _SHOWN, strict=True):
        query = next(q for q in queries() if (q.dashboard, q.panel, q.legend) == (dashboard, panel, legend))
        for server in service.servers:
            series = server.query_range(filled_in(query, service.every_s), begun_s, end_s, service.every_s)
            for points in series:
                steps = [
                    begun_s + number * service.every_s for number in range(int((end_s - begun_s) / service.every_s))
                ]
                known = {round(at_s - begun_s): value for at_s, value in points}
                values = [known.get(round(at_s - begun_s), float("nan")) for at_s in steps]
                colour = _COLOURS[server.way]
                axis.plot([at - begun_s for at in steps], values, color=colour, lw=1.3, label=server.way, alpha=0.8)
        axis.set_title(f"{dashboard}: {panel}", loc="left", fontsize=10)
        axis.set_ylim(bottom=0)
        for at_s in story.moments.values():
            axis.axvline(at_s - begun_s, color="#888888", lw=0.8, ls=":")
    for name, at_s in story.moments.items():
        axes[0].annotate(name, (at_s - begun_s, axes[0].get_ylim()[1]), fontsize=8, rotation=20, annotation_clip=False)
    handles = {handle.get_label(): handle for handle in axes[0].get_lines() if handle.get_label() in _COLOURS}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, frameon=False)
    axes[-1].set_xlabel("seconds")
    return figure


def _undisturbed(receiver: OtlpReceiver) -> list[ReceivedSpan]:
    """Return a request with one epoch, from the middle of all such requests."""
    whole = [trace for trace in _traces(receiver) if len(trace) == len(_ORDER) + 1 and not _deaths(trace[0])]
    return sorted(whole, key=lambda trace: trace[0].end_ns - trace[0].start_ns)[len(whole) // 2]


def _taken_over(receiver: OtlpReceiver) -> list[ReceivedSpan]:
    """Return the request with the fewest tokens at takeover among those that another worker continued after one
    lease.
    """
    taken_over = [trace for trace in _traces(receiver) if len(_deaths(trace[0])) == 1]
    begun_ns = [_deaths(trace[0])[0][2] for trace in taken_over]
    first = [trace for trace, at_ns in zip(taken_over, begun_ns, strict=True) if at_ns < min(begun_ns) + _TOGETHER_NS]

    def continued(trace: list[ReceivedSpan]) -> int:
        return int(_epochs(trace[0])[-1].attributes[Attribute.CONTINUED_TOKENS])

    return min((one for one in first if continued(one)), key=continued)


def _traces(receiver: OtlpReceiver) -> list[list[ReceivedSpan]]:
    """Return the spans of each request that a gateway has answered, the gateway's own first."""
    servers = sorted((span for span in receiver.spans if span.kind == "SERVER"), key=lambda span: span.start_ns)
    by_trace: dict[str, list[ReceivedSpan]] = {span.trace_id: [span] for span in servers}
    for span in receiver.spans:
        if span.kind != "SERVER" and span.trace_id in by_trace:
            by_trace[span.trace_id].append(span)
    return list(by_trace.values())


def _epochs(server: ReceivedSpan) -> Sequence[Any]:
    return [event for event in server.events if event.name == SpanEvent.EPOCH]


def _deaths(server: ReceivedSpan) -> list[tuple[str, int, int]]:
    """Return epochs that another worker ended: name of the worker, begin and end as the gateway saw them."""
    epochs = _epochs(server)
    return [
        (str(one.attributes[Attribute.WORKER]), one.time_ns, later.time_ns)
        for one, later in pairwise(epochs)
        if one.attributes[Attribute.WORKER] != later.attributes[Attribute.WORKER]
    ]


def _gantt(trace: list[ReceivedSpan]) -> Any:
    """Draw each span as a bar; on the left the beginning enlarged, or after a takeover what followed it."""
    server, *others = trace
    others.sort(key=lambda span: _ORDER.index(Span(span.name.partition(" ")[0])))
    rows = [(_label(span), span.start_ns, span.end_ns, _OF_SERVICE[span.service], False) for span in (server, *others)]
    for worker, begin_ns, end_ns in _deaths(server):
        rows.insert(2, (f"    process on {worker}: killed, no span", begin_ns, end_ns, _DEAD, True))
    deaths = _deaths(server)
    again_ns = [span.start_ns for span in others if span.name.startswith(Span.PROCESS)]
    zoom_from_ns = min(again_ns) - 2_000_000 if deaths else server.start_ns
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 0.45 * len(rows) + 1.2), sharey=True, layout="constrained")
    titles = ("all of it", "what followed the takeover, enlarged" if deaths else "its begin, enlarged")
    for axis, title in zip(axes, titles, strict=True):
        for index, (_, begin_ns, end_ns, colour, is_dead) in enumerate(rows):
            left, width = (begin_ns - server.start_ns) / 1e6, max((end_ns - begin_ns) / 1e6, 0.02)
            look = {"facecolor": "none", "hatch": "////", "edgecolor": colour} if is_dead else {"color": colour}
            axis.barh(index, width, left=left, height=0.6, **look)
        for event in _epochs(server):
            axis.plot(
                (event.time_ns - server.start_ns) / 1e6,
                0,
                marker="v",
                color="#ffd24d",
                markersize=7,
                markeredgecolor="black",
            )
        axis.set_axisbelow(True)
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xlabel("milliseconds")
        axis.ticklabel_format(axis="x", useOffset=False)
    axes[0].set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=9)
    axes[0].invert_yaxis()
    begin_ms = (zoom_from_ns - server.start_ns) / 1e6
    axes[1].set_xlim(begin_ms, begin_ms + _zoom_ms(others, zoom_from_ns))
    return figure


def _zoom_ms(spans: list[ReceivedSpan], from_ns: int) -> float:
    """Return a time a little after the next first token."""
    decodes = [span.start_ns for span in spans if span.name == Span.DECODE and span.start_ns > from_ns]
    return 1.3 * (min(decodes) - from_ns) / 1e6


def _label(span: ReceivedSpan) -> str:
    name = span.name.partition(" ")[0] if span.kind != "SERVER" else span.name
    who = f" on {span.attributes[Attribute.CLIENT_ID]}" if name == Span.PROCESS else ""
    indent = "" if span.kind == "SERVER" else "  " if span.kind == "PRODUCER" else "    " if who else "      "
    return f"{indent}{name}{who}, {(span.end_ns - span.start_ns) / 1e6:,.1f} ms"
