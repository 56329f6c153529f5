"""From reply logs to HTTP answers: readers, text, server-sent events."""
