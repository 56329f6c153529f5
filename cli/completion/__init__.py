"""`orcastream completion`."""
