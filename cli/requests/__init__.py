"""`orcastream requests`."""
