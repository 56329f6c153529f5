"""The checks that a request must pass before it is queued: keys, tenants, limits, tokenizing."""
