"""How to call hermes so that it works on the store under examination: for what only hermes itself should do."""

from __future__ import annotations

from hermes_doctor.host.upstream import hermes_command
from hermes_doctor.store.view import StoreView


def hermes(view: StoreView) -> str:
    """Return the start of a command line, such as ``hermes -p work``; plain ``hermes`` for a store without a home."""
    if view.home is None:
        return "hermes"
    return hermes_command(view.home / "state.db", view.profile) or "hermes"
