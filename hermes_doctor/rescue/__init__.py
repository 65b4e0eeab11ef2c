"""Saving what can be saved of a damaged store: read from a private copy, written into a new file, told row by row.

``run`` does it; ``account`` is what it comes to. What SQLite can read, SQLite reads; pages are walked by hand only
where its trees are broken.
"""
