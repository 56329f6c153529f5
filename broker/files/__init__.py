"""Files of tenants in Redis: put there in pieces, listed, read by whoever serves them, gone when they expire."""
