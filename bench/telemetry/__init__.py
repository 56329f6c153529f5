"""Measurement of the cost of telemetry."""
