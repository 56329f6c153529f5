"""`orcastream keys`."""
