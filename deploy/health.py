"""Health check of a container: `health.py VARIABLE live|ready`; VARIABLE holds the port that serves /health/.

Exits with status 0 if the answer is 200, else with 1 and prints the answer.
"""

import http.client
import os
import sys

_TIMEOUT_S = 4


def main(variable: str, what: str) -> str | None:
    """Return what is wrong; None if all is well."""
    port = os.environ.get(variable)
    if not port:
        return f"{variable}: got nothing, allowed: the port that serves /health/{what}"
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=_TIMEOUT_S)
    try:
        connection.request("GET", f"/health/{what}")
        response = connection.getresponse()
        return None if response.status == 200 else f"{response.status} {response.read(500).decode(errors='replace')}"
    except (OSError, http.client.HTTPException) as error:
        return f"127.0.0.1:{port}: {error}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
