"""The single package name that Orcastream installs. Its folders are next to this one and are linked here."""

from pathlib import Path

IMPORTED_FROM: Path = Path(__file__).resolve().parents[1]
"""The directory that a child process needs on its path to import this package."""
