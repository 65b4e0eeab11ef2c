"""A small damaged Hermes home to look at, where there is no hermes."""
