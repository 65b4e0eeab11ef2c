"""The oracle: the real hermes-agent releases, run in subprocesses over scratch homes.

What a store means is what the release that wrote it does with it. So the tests ask the releases themselves:
they write through a release's own calls and compare what it reads back. Nothing of a release is imported
into the test process, and nothing of it is kept in this repository.

``releases`` names the wheels, ``wheels`` fetches and unpacks them, ``driver`` and ``inside`` run in the
subprocess, ``steps``, ``home`` and ``process`` talk to it, ``history`` writes homes that were lived in.
"""
