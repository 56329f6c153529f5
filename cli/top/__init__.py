"""`orcastream top`."""
