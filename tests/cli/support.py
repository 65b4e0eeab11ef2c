"""Running the doctor as its users do: the installed command, in a process of its own, in a scrubbed environment."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]
MODULE = (sys.executable, "-m", "hermes_doctor")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Nothing of the tester's own settings; the home folder and the temporary files are in the test's folder."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    kept = {key: os.environ[key] for key in ("PATH", "SYSTEMROOT") if key in os.environ}
    return kept | {
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(temporary),
        **more,
    }


def doctor(
    folder: Path,
    *arguments: str | Path,
    command: Sequence[str] = MODULE,
    extra: Mapping[str, str] | None = None,
    **settings: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs one command with the folder as home and as working directory, and waits for it."""
    return subprocess.run(
        [*command, *map(str, arguments)],
        **{"cwd": folder, "capture_output": True, "text": True, "timeout": 120, **settings},
        env=environment(folder, **(extra or {})),
    )


def start(folder: Path, *arguments: str | Path, **settings: Any) -> subprocess.Popen[str]:
    """Starts one command and lets it run."""
    return subprocess.Popen(
        [*MODULE, *map(str, arguments)],
        **{
            "cwd": folder,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "env": environment(folder),
            **settings,
        },
    )


def valid(text: str, schema: str) -> Any:
    """The one JSON document that the text is, valid by the schema, which must also know every name in it."""
    document = json.loads(text, parse_constant=_refuse)
    _validator(schema).validate(document)
    return document


@cache
def _validator(schema: str) -> Draft202012Validator:
    shipped = json.loads(files("hermes_doctor.report").joinpath("schemas", f"{schema}.json").read_text("utf-8"))
    Draft202012Validator.check_schema(shipped)
    return Draft202012Validator(_closed(shipped))


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def _closed(schema: Any) -> Any:
    """The schema, but refusing every name that it does not list: what we write must be described."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in copy.deepcopy(schema).items()}
    if closed.get("type") == "object" and "properties" in closed:
        closed["additionalProperties"] = False
    return closed


def listing(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below the folder: size, modification time in nanoseconds, bytes."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
