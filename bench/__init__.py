"""What is measured, always as a ratio within one run, into ``bench/RESULTS.md``: ``python -m bench --help``.

A part is a module with ``figures(options: Options) -> list[Figure]``. Long proofs are commands of their own
(``python -m bench.kills``, ...), which write what came of them into a section of their own with ``--record``
(`bench.results.record`).
"""
