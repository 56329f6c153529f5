"""Load through HTTP: clients, questions, and what became of them. Runs where a gateway does: no torch."""
