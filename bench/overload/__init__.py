"""`orcastream bench overload`."""
