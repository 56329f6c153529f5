"""The HTTP server around the API: connections, their timeouts and bounds, and who may send requests."""
