"""The overhead around the engine: publishing, sharing the interpreter, the gateway, prompts, host work."""
