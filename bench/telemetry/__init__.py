"""What telemetry costs."""
