"""The one name that Orcastream takes among installed packages. The rooms lie beside it, and are linked here."""

from pathlib import Path

IMPORTED_FROM: Path = Path(__file__).resolve().parents[1]
"""What a child process must have on its path to import this package, too."""
