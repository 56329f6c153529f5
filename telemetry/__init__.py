"""What the service says of itself: names of spans and metrics, set-up of exporters, logs, dashboards, alerts."""
