#!/usr/bin/env python3
"""Post several requests at once with Orcastream's Python client for asyncio, straight over Redis.

    python client_async.py redis://127.0.0.1:6399/0 "[1, 17, 42]" "[1, 17, 43]"

Prompts are token ids, as `orcastream tokenize` prints them: so nobody needs a tokenizer here.
"""

import asyncio
import json
import sys
from collections.abc import Sequence

from orcastream.client import AsyncClient


async def answers(url: str, prompts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The tokens of each answer."""
    async with AsyncClient(url, "orca-demo") as client:
        replies = [client.generate(prompt, temperature=0, max_tokens=64) for prompt in prompts]
        results = await asyncio.gather(*(reply.result() for reply in replies))
        return [result.choices[0].tokens for result in results]


if __name__ == "__main__":
    for tokens in asyncio.run(answers(sys.argv[1], [json.loads(prompt) for prompt in sys.argv[2:]])):
        print(json.dumps(tokens))
