"""What the engine does, told while somebody watches."""
