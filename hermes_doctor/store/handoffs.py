"""Whether a session begins with the summary of another: what a compression hands on to the session that goes on.

The row says so by a column of its own (0.20.6 on); before that, and in rows from before, only the text does.
"""

from __future__ import annotations

from hermes_doctor.store.shape import Shape

#: What upstream puts in front of a summary: 0.13.0 on, before, and (0.18.0 on) where it shares a row with other text.
_OPENINGS = ("[CONTEXT COMPACTION", "[CONTEXT SUMMARY]:", "[PRIOR CONTEXT")
#: In so many of its first messages a session has the summary: what was said first may be kept in front of it.
_FIRST = 10


def begins_with_summary_sql(shape: Shape, session: str) -> str:
    """Return SQL for whether one of the first messages of a session (an SQL expression) is a summary."""
    if not shape.has("messages", "id", "session_id", "content"):
        return "0"
    return (
        f"EXISTS (SELECT 1 FROM (SELECT {is_summary_sql(shape)} AS summary FROM messages WHERE session_id = {session}"
        f" ORDER BY id LIMIT {_FIRST}) WHERE summary)"
    )


def is_summary_sql(shape: Shape) -> str:
    """Return SQL for whether a row of messages, which has a content, is a summary."""
    marked = shape.column("messages", "_compressed_summary", absent="0")
    opens = " OR ".join(f"substr(content, 1, {len(text)}) = '{text}'" for text in _OPENINGS)
    return f"({marked} = 1 OR {opens})"
