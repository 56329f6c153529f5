"""The public certificates, read once per process."""

import ssl
from functools import cache
from typing import Any


def read_once() -> None:
    """Let all clients of one file share the certificates: httpx and OpenAI's library reread them for each client, which
    takes 24 ms, and no test needs any.
    """
    read = ssl.create_default_context
    of_file = cache(lambda name: read(cafile=name))

    def shared(*args: Any, **options: Any) -> ssl.SSLContext:
        return of_file(options["cafile"]) if not args and options.keys() == {"cafile"} else read(*args, **options)

    ssl.create_default_context = shared
