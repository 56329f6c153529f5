"""The workloads by name."""

from collections.abc import Callable
from dataclasses import dataclass

from orcastream.bench.workloads.draw import Draw
from orcastream.bench.workloads.sample import SampleRequest

Build = Callable[[Draw], list[SampleRequest]]


@dataclass(frozen=True)
class Workload:
    """`build(draw)` returns the requests in order of arrival; `requests` is their default number."""

    name: str
    description: str
    requests: int
    build: Build


WORKLOADS: dict[str, Workload] = {}


def workload(requests: int) -> Callable[[Build], Build]:
    """Decorate a function that builds a workload: it is registered by its name and its docstring's first line."""

    def register(build: Build) -> Build:
        description = (build.__doc__ or "").strip().partition("\n")[0]
        WORKLOADS[build.__name__] = Workload(build.__name__, description, requests, build)
        return build

    return register
