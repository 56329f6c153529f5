"""What the service says of itself: logs today; names of spans and metrics live here too."""
