"""`orcastream chat`."""
