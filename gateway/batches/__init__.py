"""OpenAI's Files and Batch API: files kept in Redis, and bulk jobs that any gateway runs, one at a time each."""
