"""Code shared by the commands that inspect a queue."""
