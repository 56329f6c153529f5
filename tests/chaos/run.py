"""The chaos suite: `python -m tests.chaos.run --minutes 15 --seed 1 --json chaos.json`, or `make chaos`.

Real processes under a mixed load, while faults are injected at random; then everything recorded is checked. Exit status
0: all promises were kept; 1: one was broken; 2: the run is not possible with these arguments.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests import public_certificates
from tests.chaos.cancelling import cancel
from tests.chaos.catalogue import Catalogue
from tests.chaos.checker import Checker, Findings, Undisturbed
from tests.chaos.faults import FAULTS, faults_of
from tests.chaos.http_client import HttpClient
from tests.chaos.injector import Injector, plan
from tests.chaos.leaks import find_leaks
from tests.chaos.load import BEHAVIOURS, GRACE_S, Load
from tests.chaos.patches import BREAKS, apply
from tests.chaos.record import AWAY, Recorder
from tests.chaos.redis_client import RedisClient
from tests.chaos.redis_service import Unsupported, find_binary
from tests.chaos.report import summarize, table, write_json
from tests.chaos.resources import Resources
from tests.chaos.services import Site

_EMPTY_S = 120.0


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=1, help="of the load and of the faults")
    parser.add_argument("--mode", default="always", help="of Redis: none, everysec, always, valkey, sentinel, cluster")
    parser.add_argument("--faults", default="all", help=f"some of {','.join(FAULTS)}, or all, or none")
    parser.add_argument("--rate", type=float, default=2.5, help="requests per second")
    parser.add_argument("--faults-per-minute", type=float, default=14)
    parser.add_argument("--load", default="all", help=f"some of {','.join(BEHAVIOURS)}, or all")
    parser.add_argument("--settle", type=float, default=180, help="seconds that the last clients have after the faults")
    parser.add_argument("--pause-ms", type=float, default=8, help="before each iteration of the engine")
    parser.add_argument("--grace-s", type=float, default=GRACE_S, help="grace period of the gateways for a lost client")
    parser.add_argument("--json", default=None, help="where to write the figures")
    parser.add_argument("--break", dest="broken", default="none", help=f"the workers, so: some of {','.join(BREAKS)}")
    parser.add_argument("--keep", default=None, help="a new folder for the logs of all processes")
    options = parser.parse_args(arguments)
    options.kinds = _some_of(parser, "--faults", options.faults, faults_of(options.mode))
    options.behaviours = _some_of(parser, "--load", options.load, BEHAVIOURS)
    options.breaks = _some_of(parser, "--break", options.broken, BREAKS)
    return options


def _some_of(parser: argparse.ArgumentParser, flag: str, value: str, allowed: Iterable[str]) -> list[str]:
    """Return the names in a comma-separated value; all for `all`, none for `none`."""
    names = {"all": list(allowed), "none": []}.get(value, value.split(","))
    if unknown := set(names).difference(allowed):
        parser.error(f"{flag}: got {', '.join(sorted(unknown))}, allowed: {', '.join(allowed)}, all, none")
    return names


async def run(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run once and return the figures."""
    async with AsyncExitStack() as stack:
        patch = partial(apply, options.pause_ms / 1000, options.breaks)
        site = Site(options.mode, directory, patch=patch, grace_s=options.grace_s)
        stack.push_async_callback(site.stop)
        catalogue = await _start(site)
        http = HttpClient([gateway.url for gateway in site.gateways], Random(f"{options.seed} http"))
        redis, recorder = (
            RedisClient(site.redis.producer(), site.redis.queue),
            Recorder(site.redis.observer, site.redis.queue),
        )
        for client in (http, redis):
            stack.push_async_callback(client.close)
        load = Load(http, redis, recorder, catalogue, Random(f"{options.seed} load"), options.behaviours)
        injector = Injector(site, http, FAULTS)
        resources = Resources(lambda: {one.name: one.pid for one in site.services if one.pid is not None})
        resources.look()
        before = list(resources.samples)
        watching = [asyncio.create_task(work) for work in (recorder.watch(), resources.watch(), site.keep())]
        stack.push_async_callback(cancel, watching)
        begin = time.monotonic()
        planned = plan(Random(f"{options.seed} faults"), options.kinds, options.minutes, options.faults_per_minute)
        await asyncio.gather(load.run(options.rate, begin + options.minutes * 60), injector.run(planned))
        unfinished = await load.wait(options.settle)
        left_over = await _emptied(recorder)
        await cancel(watching)
        resources.samples.clear()
        resources.look()
        await recorder.read_finally()
        undisturbed = Undisturbed(catalogue.answers, catalogue.text)
        losses = site.redis.losses
        standstill_s = resources.longest_standstill_s
        checker = Checker(undisturbed, injector.faults, begin, losses=losses, standstill_s=standstill_s)
        for seen in recorder.requests.values():
            checker.check(seen, recorder.logs[seen.id])
        checker.check_dead_letters(await recorder.dead_letters(), recorder.requests)
        findings = checker.findings
        _add_the_rest(findings, unfinished, left_over, site)
        for leak in find_leaks(before, resources.samples):
            findings.add(leak.kind, leak.subject, leak.detail)
        head = {name: getattr(options, name) for name in ("seed", "mode", "minutes", "rate", "faults_per_minute")}
        requests, logs = list(recorder.requests.values()), list(recorder.logs.values())
        head["losses"] = {
            "times": len(losses),
            "entries": sum(map(len, checker.losses.entries.values())),
            "longest_s": round(checker.losses.longest_s, 2),
            "requests_told": len(checker.losses.told),
        }
        head |= {"refused": http.num_refused, "longest_standstill_s": round(standstill_s, 2)}
        return summarize(head, begin, requests, logs, injector.faults, findings)


async def _start(site: Site) -> Catalogue:
    """Start everything; a separate worker computes the undisturbed answers first."""
    catalogue = Catalogue.load()
    await site.redis.start()
    site.intact_worker.start()
    await catalogue.ask(site.redis.observer(), site.redis.queue)
    await site.intact_worker.kill()
    await site.start()
    if why := await site.redis.healed():
        raise RuntimeError(f"Redis is not healthy before the first fault: {why}")
    return catalogue


async def _emptied(recorder: Recorder) -> dict[str, int]:
    """Return what remains in Redis when there is nothing more to wait for."""
    give_up = time.monotonic() + _EMPTY_S
    left = {"redis": 0}
    while left and time.monotonic() < give_up:
        with suppress(*AWAY):  # the first use of a connection that a fault has cut
            left = await recorder.left_over()
        await asyncio.sleep(0.5)
    return left


def _add_the_rest(findings: Findings, unfinished: list[str], left_over: dict[str, int], site: Site) -> None:
    for request_id in unfinished:
        findings.add("stuck", request_id, "its client did not come to an end")
    for key, count in left_over.items():
        findings.add("stuck", key, f"{count} at the end")
    for what in site.died:
        findings.add("died", what.partition(" ")[0], what)


def main(arguments: list[str]) -> int:
    """Run the suite and return the exit status."""
    options = parse(arguments)
    try:
        find_binary(options.mode)
    except Unsupported as error:
        print(error, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        directory = Path(options.keep or temporary)
        summary = asyncio.run(run(options, directory))
    print(table(summary))
    if options.json:
        write_json(options.json, summary)
    names = ("seed", "minutes", "mode", "faults", "load", "rate", "faults_per_minute", "pause_ms", "grace_s")
    again = " ".join(f"--{name.replace('_', '-')} {getattr(options, name)}" for name in names)
    broken = bool(summary["violations"])
    print(f"{'VIOLATED' if broken else 'all promises were kept'}; the same again: {again}")
    return int(broken)


if __name__ == "__main__":
    public_certificates.read_once()
    sys.exit(main(sys.argv[1:]))
