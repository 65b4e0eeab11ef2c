"""What is measured, always as a ratio within one run: ``python -m bench.scan --help``."""
