"""Loading a model, checking it, running flat batches through it."""
