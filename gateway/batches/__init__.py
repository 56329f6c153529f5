"""OpenAI's Files and Batch API: files kept in Redis, and bulk jobs, each run by one gateway at a time."""
