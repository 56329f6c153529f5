"""Which tokens of which requests are computed next."""
