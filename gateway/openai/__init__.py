"""OpenAI's API: one class per endpoint, with its request, its checks and its shapes."""
