"""Measurement of the engine alone, without queue and HTTP, under a workload."""
