"""`orcastream submit` and `orcastream results`."""
