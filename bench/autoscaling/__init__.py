"""Autoscaling demonstrated on one machine: a site whose workers start and stop with the load."""
