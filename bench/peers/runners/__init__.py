"""One file per system, run by its own environment's Python, which finds only this package of the project."""
