"""What the path around the engine costs: publishing, sharing the interpreter, the gateway, prompts, host work."""
