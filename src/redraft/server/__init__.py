"""The HTTP server: OpenAI's routes over the engine in its own process, and the steps of a canvas for who asks."""
