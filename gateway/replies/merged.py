"""Merges several asynchronous generators into one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merged(sources: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Yield the items of all `sources` as they arrive, with the source's number. Raises what a source raises; closes
    all.

    No source runs ahead by more than one item.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as source:
            async for only in source:
                yield 0, only
        return
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(1)
    tasks = [asyncio.create_task(_pass_on(number, source, queue)) for number, source in enumerate(sources)]
    try:
        left = len(sources)
        while left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_on(
    number: int, source: AsyncGenerator[T], queue: "asyncio.Queue[tuple[int, T] | Exception | None]"
) -> None:
    try:
        async with aclosing(source):
            async for item in source:
                await queue.put((number, item))
        await queue.put(None)
    except Exception as error:
        await queue.put(error)
