"""The doctor of hermes-agent's ``state.db``: finds what is wrong, mends it, takes it back."""

__version__ = "0.1.0"
