"""Files of tenants in Redis: stored in pieces, listed, read by the gateways and job runners, and expired."""
