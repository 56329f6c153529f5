"""HTTP in front of the broker: OpenAI's API, admission, server-sent events. Stateless: any gateway serves any reply."""
