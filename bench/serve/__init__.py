"""Load over HTTP: clients, questions and results. Runs wherever a gateway runs, without torch."""
