#!/usr/bin/env python3
"""Ask Orcastream with its Python client, and print the answer as it comes, whatever restarts meanwhile.

python client_sync.py http://127.0.0.1:8000 http://127.0.0.1:8001 "Count from 1 to 300"
"""

import argparse
import sys

from orcastream.client import Client, ClientError, InvalidRequest, Message


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask one question, and print the answer as it comes.")
    parser.add_argument("urls", nargs="+", metavar="URL", help="gateways, such as http://127.0.0.1:8000")
    parser.add_argument("question")
    args = parser.parse_args()
    try:
        ask(args.urls, args.question)
    except ClientError as error:
        print(f"\n{error.code}: {error}", file=sys.stderr)
        return 1
    except InvalidRequest as error:
        parser.error(str(error))
    return 0


def ask(urls: list[str], question: str) -> None:
    messages: list[Message] = [{"role": "user", "content": question}]
    with Client(urls, "orca-demo") as client, client.generate(messages, temperature=0) as reply:
        for delta in reply:
            print(delta.text, end="", flush=True)
        print(f"\n{reply.result().usage.completion_tokens} tokens", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
