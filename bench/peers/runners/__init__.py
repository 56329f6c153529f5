"""One file per system, run by the Python of its own environment: imports nothing of this project but this package."""
