"""Files of tenants in Redis: stored in pieces, listed, read, and deleted when they expire."""
