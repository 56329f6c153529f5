"""What a request has to pass before it waits: keys, tenants, limits, tokenizing."""
