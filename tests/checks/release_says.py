"""What a release's own code says of sessions, where it takes more of it than its SessionDB."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.oracle.home import Home, environment
from tests.oracle.releases import Release, get

_SCRIPT = """
import json, sys
from pathlib import Path
from hermes_state import SessionDB
{imports}
store = SessionDB(db_path=Path(sys.argv[1]))
print(json.dumps({{session: {said} for session in json.load(sys.stdin)}}))
store.close()
"""


def release_says(
    home: Home, release: Release | str, imports: str, said: str, sessions: Sequence[str]
) -> dict[str, Any]:
    """The value of the expression ``said`` for each ``session``, in the release's process; ``store`` is its store."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _SCRIPT.format(imports=imports, said=said), str(home.store)],
        input=json.dumps(sessions),
        capture_output=True,
        text=True,
        check=True,
        env=environment(home.path, get(release)),
    )
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers
