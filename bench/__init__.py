"""Load generators, measurements, and plots of the results."""
