"""The scheduler: which tokens of which requests are computed next."""
