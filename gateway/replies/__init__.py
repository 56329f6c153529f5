"""From reply logs to HTTP answers: who reads, the text, server-sent events."""
