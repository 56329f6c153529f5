"""The engine alone, without queue and HTTP, under a workload."""
