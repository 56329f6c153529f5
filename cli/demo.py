"""`make demo`: Redis, a gateway and two workers on this machine answer twelve questions at once."""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import httpx
from rich.console import Console
from rich.live import Live

from orcastream.cli.answer import Answer
from orcastream.cli.demo_view import PlainLog, figures, progress
from orcastream.cli.errors import UserError
from orcastream.cli.interruption import cancel_on_stop
from orcastream.cli.served_model import with_model
from orcastream.cli.stack import Stack
from orcastream.cli.stop_signals import StopSignals
from orcastream.cli.up_settings import UpSettings
from orcastream.demo.prompts import SHOWCASE

_WORKERS = 2
_READY_S = 120.0
_ANSWERS_S = 120.0
_REFRESH_S = 0.1
_KEPT_LINES = 200
_LOG_WIDTH = 120


def main() -> int:
    """Return 0 if every answer is as expected and every worker gave one. `--keep`: keep serving until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make demo")
    parser.add_argument("--keep", action="store_true", help="keep serving until Ctrl-C")
    keep = parser.parse_args().keep
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    _forget_settings()
    with tempfile.TemporaryDirectory(prefix="orcastream-demo-") as directory:
        os.chdir(directory)  # so that no .env file is read
        try:
            return asyncio.run(_demo(console, Path(directory), keep=keep))
        except UserError as error:
            console.print(f"demo: {error}", style="bold red", markup=False)
            return 1
        except (KeyboardInterrupt, asyncio.CancelledError):
            console.print("demo: interrupted, everything is stopped")
            return 130
        finally:
            os.chdir("/")


def _forget_settings() -> None:
    for name in [name for name in os.environ if name.startswith("ORCASTREAM_")]:
        del os.environ[name]


async def _demo(console: Console, directory: Path, *, keep: bool) -> int:
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    settings = with_model(
        UpSettings(
            workers=_WORKERS, port=0, data_dir=directory, drain_grace_s=0, max_batch_size=len(SHOWCASE) // _WORKERS
        )
    )
    stack = Stack(settings, lambda name, line: lines.append(f"{name:<8} | {line}"))
    main_task = asyncio.current_task()
    assert main_task is not None
    cancel_on_stop(main_task)
    begun = time.monotonic()
    try:
        with console.status("Starting Redis, a gateway and two workers with the demo model ..."):
            await _start(stack)
        console.print(f"Ready after {time.monotonic() - begun:.1f} s: {_who(stack)}", highlight=False)
        console.print(
            f"Console: {stack.url}/console{'' if keep else ' (to keep it: make demo KEEP=1)'}", highlight=False
        )
        answers = await _ask(stack, str(settings.served_model_name), console)
        good = _judge(stack, answers, console)
        if keep:
            await _serve_on(stack, console)
    except UserError:
        _tell(console, lines)
        raise
    finally:
        await stack.stop()
    if not good:
        _tell(console, lines)
    console.print("All processes are stopped.")
    return 0 if good else 1


async def _serve_on(stack: Stack, console: Console) -> None:
    signals = StopSignals()
    console.print(f"Serving until Ctrl-C: {stack.url}/console", highlight=False)
    waits = [asyncio.create_task(wait) for wait in (signals.stop.wait(), stack.gave_up())]
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


def _tell(console: Console, lines: Iterable[str]) -> None:
    console.print("\n".join(["The processes' last lines:", *lines]), markup=False, highlight=False, soft_wrap=True)


async def _start(stack: Stack) -> None:
    await stack.start()
    try:
        async with asyncio.timeout(_READY_S):
            await stack.ready(num_workers=_WORKERS)
    except TimeoutError:
        raise UserError(f"the service was not ready within {_READY_S:g} s") from None


async def _ask(stack: Stack, model: str, console: Console) -> list[Answer]:
    answers = [Answer(question, expected) for question, expected in SHOWCASE]
    console.print(f"{len(answers)} requests at once to {stack.url}/v1/chat/completions", highlight=False)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=stack.url, timeout=_ANSWERS_S, limits=limits, trust_env=False) as client:
        asking = asyncio.gather(*(answer.stream(client, model) for answer in answers))
        await _show(console, answers, _namer(stack), asking)
    return answers


async def _show(
    console: Console, answers: Sequence[Answer], name_of: Callable[[str], str], asking: "asyncio.Future[list[None]]"
) -> None:
    if not console.is_terminal:
        log = PlainLog(console, answers, name_of)
        while not asking.done():
            await asyncio.wait((asking,), timeout=_REFRESH_S)
            log.update()
    else:
        with Live(console=console, auto_refresh=False) as live:
            while not asking.done():
                await asyncio.wait((asking,), timeout=_REFRESH_S)
                live.update(progress(answers, name_of, console.width), refresh=True)
    await asking


def _judge(stack: Stack, answers: Sequence[Answer], console: Console) -> bool:
    console.print(figures(answers, _namer(stack)))
    correct = sum(answer.correct for answer in answers)
    tokens = sum(answer.num_tokens for answer in answers)
    took = max((answer.last_s or answer.asked_s) for answer in answers) - min(answer.asked_s for answer in answers)
    served = sorted({_namer(stack)(worker) for answer in answers for worker in answer.workers})
    console.print(f"{tokens} tokens in {took:.1f} s, served by {', '.join(served) or 'nobody'}.", highlight=False)
    console.print(f"{correct} of {len(answers)} answers are as expected.", highlight=False)
    for answer in answers:
        if not answer.correct:
            console.print(
                f"{answer.question}\n  expected: {answer.expected}\n  got: {answer.error or answer.text}",
                markup=False,
                highlight=False,
            )
    idle = set(stack.workers) - set(served)
    if idle:
        console.print(f"No answer came from {', '.join(sorted(idle))}.")
    return correct == len(answers) and not idle


def _namer(stack: Stack) -> Callable[[str], str]:
    """Return a function that maps the workers' own names, which contain their pid, to short ones."""

    def name_of(worker: str) -> str:
        parts = worker.split("-")
        return next((name for name in stack.workers if str(stack.pid(name)) in parts), worker)

    return name_of


def _who(stack: Stack) -> str:
    names = ("redis", "gateway", *stack.workers)
    return ", ".join(f"{name} (pid {stack.pid(name)})" for name in names)


if __name__ == "__main__":
    sys.exit(main())
