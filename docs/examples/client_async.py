#!/usr/bin/env python3
"""Post several requests at once with Orcastream's Python client for asyncio, straight over Redis.

    python client_async.py redis://127.0.0.1:6399/0 "[1, 17, 42]" "[1, 17, 43]"

Prompts are token ids, as `orcastream tokenize` prints them: so nobody needs a tokenizer here.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from orcastream.client import AsyncClient, ClientError, InvalidRequest


def main() -> int:
    parser = argparse.ArgumentParser(description="Post prompts at once, and print the tokens of each answer.")
    parser.add_argument("url", metavar="URL", help="Redis, such as redis://127.0.0.1:6399/0")
    parser.add_argument("prompts", nargs="+", type=token_ids, metavar="PROMPT", help='token ids, such as "[1, 17, 42]"')
    args = parser.parse_args()
    try:
        for tokens in asyncio.run(answers(args.url, args.prompts)):
            print(json.dumps(tokens))
    except ClientError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return 1
    except InvalidRequest as error:
        parser.error(str(error))
    return 0


def token_ids(text: str) -> list[int]:
    ids: list[int] = json.loads(text)  # the client checks what is in it
    return ids


async def answers(url: str, prompts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The tokens of each answer."""
    async with AsyncClient(url, "orca-demo") as client:
        replies = [client.generate(prompt, temperature=0, max_tokens=64) for prompt in prompts]
        results = await asyncio.gather(*(reply.result() for reply in replies))
        return [result.choices[0].tokens for result in results]


if __name__ == "__main__":
    sys.exit(main())
