"""What a home's config says of sessions, and the room that its prune needs, for a check to judge."""

from __future__ import annotations

from hermes_doctor.host.config_file import SessionsConfig, has_good_copy, read_sessions_config
from hermes_doctor.host.room import free_bytes
from hermes_doctor.store.view import StoreView


def config_of(view: StoreView) -> SessionsConfig | None:
    """Return what the config says of sessions, None where the store stands without its home, or it cannot be told."""
    return None if view.home is None else read_sessions_config(view.home)


def falls_back_on_a_copy(view: StoreView) -> bool:
    """Whether a release that looks for the last good copy of a broken config (0.21.5 on) finds one."""
    return view.home is not None and has_good_copy(view.home)


def room_for_vacuum(view: StoreView) -> tuple[int, int] | None:
    """Return the bytes that rewriting the store needs, and those that are free; None where the latter cannot be told.

    Twice the store: the new file, and the log or journal that it goes through.
    """
    if view.bundle is None:
        return None
    try:
        return 2 * view.bundle.size_with_log, free_bytes(view.bundle.real_path.parent)
    except OSError:
        return None
