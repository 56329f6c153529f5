"""What the commands have in common that look into a queue."""
