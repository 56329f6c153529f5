"""The version of what runs."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """The installed version; `unknown` in a checkout that was not installed."""
    try:
        return version("orcastream")
    except PackageNotFoundError:
        return "unknown"
