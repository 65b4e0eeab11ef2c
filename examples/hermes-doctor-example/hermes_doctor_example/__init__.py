"""A check of its own for the doctor of hermes-agent's ``state.db``: copy this package and begin."""
