"""Bulk jobs: many requests handed over at once, answered by the queue bit by bit, with results that stay."""
