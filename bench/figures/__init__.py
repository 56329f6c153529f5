"""What a benchmark comes to: one request's times, the figures of a run, medians of several, tables and plots."""
