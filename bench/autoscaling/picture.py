"""The plot of an autoscaling run: `python -m orcastream.bench.autoscaling.picture SERIES.json PICTURE.svg`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orcastream.bench.arrivals import RateProfile
from orcastream.bench.autoscaling.series import Series
from orcastream.bench.figures.svg import STYLE, write_svg

_QUEUE, _RATE, _WANTED, _READY, _STARTING, _DRAINING, _TTFT = (
    "#1f5fa8", "#8a8a8a", "#222222", "#4c9f70", "#e3c567", "#c8553d", "#1f5fa8",
)  # fmt: skip


def draw(series: Series, path: Path) -> None:
    """Draw queue, workers and TTFT over one time axis, as SVG. Raises ModuleNotFoundError without matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE):
        figure, (queue, workers, ttft) = pyplot.subplots(
            3, 1, sharex=True, figsize=(9, 7.5), height_ratios=(3, 2, 3), layout="constrained"
        )
        _draw_queue(queue, series)
        _draw_workers(workers, series)
        _draw_ttft(ttft, series)
        for axes in (queue, workers, ttft):
            for at in series.marks.values():
                axes.axvline(at, color="#b0b0b0", linewidth=0.8, linestyle=":")
        _name_marks(queue, series)
        figure.align_ylabels()
        write_svg(figure, path, "orcastream.bench.autoscaling.picture")
        pyplot.close(figure)


def _changes(times: Sequence[float], *columns: Sequence[float]) -> list[list[float]]:
    """Return times and values where any value changes, and the last: drawn as steps they look the same."""
    rows = list(zip(times, *columns, strict=True))
    kept = [row for index, row in enumerate(rows) if index in (0, len(rows) - 1) or row[1:] != rows[index - 1][1:]]
    return [list(column) for column in zip(*kept, strict=True)]


def _draw_queue(axes: Any, series: Series) -> None:
    times, queue = _changes(series.column("at_s"), series.column("queue"))
    axes.fill_between(times, queue, step="post", color=_QUEUE, alpha=0.25, linewidth=0)
    axes.step(times, queue, where="post", color=_QUEUE, linewidth=1.2, label="XLEN, all streams")
    target = series.settings["target"]
    for number in range(1, series.settings["max_replicas"]):
        label = f"target: {target} per worker" if number == 1 else None
        axes.axhline(target * number, color=_QUEUE, linewidth=0.8, linestyle="--", alpha=0.7, label=label)
    axes.set_ylabel("requests waiting\nand running")
    axes.set_ylim(bottom=0)
    profile = RateProfile.parse(series.settings["profile"])
    begun = series.marks["load begins"]
    rates = axes.twinx()
    rates.spines["right"].set_visible(True)
    rates.grid(False)
    points = [(begun + at, rate) for at, rate in profile.points]
    rates.plot(*zip(*points, strict=True), color=_RATE, linewidth=1.2, label="offered load")
    rates.set_ylabel("requests/s", color=_RATE)
    rates.set_ylim(bottom=0)
    lines = [*axes.get_legend_handles_labels()[0], *rates.get_legend_handles_labels()[0]]
    axes.legend(lines, [line.get_label() for line in lines], loc="upper right", frameon=False)


def _draw_workers(axes: Any, series: Series) -> None:
    names = ("ready", "starting", "draining")
    times, *stacked = _changes(series.column("at_s"), *(series.column(name) for name in names))
    colors = (_READY, _STARTING, _DRAINING)
    axes.stackplot(times, *stacked, labels=names, colors=colors, step="post", alpha=0.8, linewidth=0)
    axes.step(
        *_changes(series.column("at_s"), series.column("wanted")),
        where="post",
        color=_WANTED,
        linewidth=1.2,
        label="wanted",
    )
    axes.set_ylabel("workers")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="upper right", frameon=False, ncols=4)
    axes.set_ylim(0, max(sum(parts) for parts in zip(*stacked, strict=True)) + 1)


def _draw_ttft(axes: Any, series: Series) -> None:
    served = [(request.arrived_s, request.ttft_s) for request in series.requests if request.ttft_s is not None]
    axes.scatter(*zip(*served, strict=True), s=7, color=_TTFT, alpha=0.6, linewidths=0)
    axes.set_yscale("log")
    axes.set_ylabel("time to first token [s]\nof the request that\narrived then")
    axes.set_xlabel(f"seconds; KEDA's and the HPA's times run {series.settings['faster']:g} times as fast")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_ylim(0.01, max(100, *(2 * seconds for _, seconds in served)))


def _name_marks(axes: Any, series: Series) -> None:
    top = axes.get_ylim()[1]
    for name, at in series.marks.items():
        axes.text(at, top, name, rotation=30, fontsize=8, ha="left", va="bottom", color="#555555")


def main(arguments: Sequence[str]) -> int:
    """Draw a recorded run again."""
    if len(arguments) != 2:
        print("usage: python -m orcastream.bench.autoscaling.picture SERIES.json PICTURE.svg", file=sys.stderr)
        return 2
    draw(Series.load(Path(arguments[0])), Path(arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
