"""The engine: the model and the machinery that carries every check and fix."""
