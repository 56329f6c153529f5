"""The picture of a batch: time to the right, one lane per place, a colored bar per request."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import count

from orcastream.bench.walk.walk import MAX_BATCH_SIZE, Iteration

COLOURS = {"A": "#4477aa", "B": "#ee6677", "C": "#228833", "D": "#aa3377", "E": "#b8860b"}
_STEP, _LANE, _LEFT, _TOP, _FIELD = 26, 30, 64, 30, 148


def places(iterations: Iterable[Iteration]) -> list[dict[str, int]]:
    """Return the lane of each request per iteration: the lowest free one when it joins, kept until it leaves."""
    lanes: dict[str, int] = {}
    found = []
    for iteration in iterations:
        here = [span.name for span in iteration.spans]
        lanes = {name: lane for name, lane in lanes.items() if name in here}
        for name in sorted(set(here) - set(lanes)):
            lanes[name] = next(lane for lane in count() if lane not in lanes.values())
        found.append(dict(lanes))
    return found


def draw(fields: Mapping[str, Sequence[Iteration]]) -> str:
    """Return an SVG with one field per title. Filled: a chunk of a prompt, with its tokens; pale: one token."""
    width = _LEFT + _STEP * max(len(iterations) for iterations in fields.values()) + 10
    height = _FIELD * len(fields)
    drawn = [_field(title, iterations, _FIELD * row) for row, (title, iterations) in enumerate(fields.items())]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11">\n<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _field(title: str, iterations: Sequence[Iteration], top: int) -> str:
    parts = [f'<text x="8" y="{top + 18}" font-weight="bold" fill="#222">{escape(title)}</text>']
    for lane in range(MAX_BATCH_SIZE):
        y = top + _TOP + lane * _LANE
        parts.append(f'<text x="8" y="{y + 17}" fill="#555">place {lane + 1}</text>')
        parts.append(
            f'<rect x="{_LEFT}" y="{y}" width="{_STEP * len(iterations)}" height="{_LANE - 4}" fill="#eeeeee"/>'
        )
    for at, (iteration, lanes) in enumerate(zip(iterations, places(iterations), strict=True)):
        x = _LEFT + at * _STEP
        for span in iteration.spans:
            y = top + _TOP + lanes[span.name] * _LANE
            opacity, label = ("0.35", span.name) if span.decodes else ("1", str(span.length))
            ink = "#222" if span.decodes else "#fff"
            parts.append(
                f'<rect x="{x}" y="{y}" width="{_STEP - 1}" height="{_LANE - 4}" fill="{COLOURS[span.name]}" '
                f'fill-opacity="{opacity}"/><text x="{x + _STEP / 2 - 0.5}" y="{y + 17}" text-anchor="middle" '
                f'fill="{ink}">{label}</text>'
            )
        ends = top + _TOP + MAX_BATCH_SIZE * _LANE + 8
        parts.append(f'<text x="{x + _STEP / 2}" y="{ends}" text-anchor="middle" fill="#555">{iteration.number}</text>')
    return "\n".join(parts)
