"""The version of the running Orcastream."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """Return the installed version; `unknown` in a checkout that is not installed."""
    try:
        return version("orcastream")
    except PackageNotFoundError:
        return "unknown"
