"""What Redis carries: memory of requests and replies, tokens per second."""
