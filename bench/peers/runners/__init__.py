"""One file per system, run by the Python of its own environment: of this project a peer finds this package alone."""
