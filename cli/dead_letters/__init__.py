"""`orcastream dead-letters`."""
