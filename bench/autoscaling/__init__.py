"""Autoscaling shown on one machine: a site whose workers come and go under a load."""
