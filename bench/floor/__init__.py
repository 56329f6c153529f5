"""Comparison of an iteration with the machine's lower bound."""
