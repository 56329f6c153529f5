"""Observability of the service: names of spans and metrics, exporter setup, logs, dashboards, alerts; its process."""
