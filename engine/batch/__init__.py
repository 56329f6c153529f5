"""The flat batch of one iteration, and its computation."""
