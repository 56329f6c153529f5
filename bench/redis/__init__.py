"""Measurements of Redis: memory of requests and replies, tokens per second."""
