"""/v1/responses: its request, its items, and how its answers are written, whole and as events."""
