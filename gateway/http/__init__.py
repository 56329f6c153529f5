"""The HTTP server around the API: connections, their times and bounds, and who may ask."""
