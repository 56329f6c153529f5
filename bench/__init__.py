"""Load, measurements, and the pictures drawn of them."""
