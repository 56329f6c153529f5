"""Loads a model, checks it, and runs flat batches through it."""
