"""Taking messages out of a conversation, as hermes takes out what is rewound."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hermes_doctor.engine.cure import Mending
from hermes_doctor.store.cells import Key
from hermes_doctor.store.setting_aside import counted_without


def set_aside(mending: Mending, session: Key, messages: Sequence[int]) -> None:
    """Make messages of a session inactive, and lower its counters with them where these counted just its live rows.

    A message with NULL in ``active`` is as good as live. The store has that column. Raises RowMovedError where one of
    them is not live any more.
    """
    view = mending.view
    counted = counted_without(view, session, messages)
    aside = ", ".join(f"{column} = 0" for column in ("active", "compacted") if view.shape.has("messages", column))
    mending.run(
        f"UPDATE messages SET {aside} WHERE coalesce(active, 1) = 1 AND id IN (SELECT value FROM json_each(:ids))",
        {"ids": json.dumps(list(messages))},
        rows=len(messages),
    )
    if counted.after:
        mending.set("sessions", session, to=counted.after, expects=counted.before)
