"""Bulk jobs: many requests submitted at once and answered through the queue over time, with stored results."""
