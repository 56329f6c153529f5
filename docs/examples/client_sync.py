#!/usr/bin/env python3
"""Ask Orcastream with its Python client, and print the answer as it comes, whatever restarts meanwhile.

python client_sync.py http://127.0.0.1:8000 http://127.0.0.1:8001 "Count from 1 to 300"
"""

import sys

from orcastream.client import Client, ClientError, Message


def main(urls: list[str], question: str) -> int:
    messages: list[Message] = [{"role": "user", "content": question}]
    with Client(urls, "orca-demo") as client, client.generate(messages, temperature=0) as reply:
        try:
            for delta in reply:
                print(delta.text, end="", flush=True)
            print(f"\n{reply.result().usage.completion_tokens} tokens", file=sys.stderr)
        except ClientError as error:
            print(f"\n{error.code}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    *gateways, asked = sys.argv[1:]
    sys.exit(main(gateways, asked))
