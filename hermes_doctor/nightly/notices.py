"""Telling others of a nightly run, where that was asked for: a URL that is pinged, a command that gets the JSON.

Neither ever changes what the run came to: what goes wrong with a notice is told, and that is all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

#: Longest wait for a ping's answer, and for the command to end, in seconds.
PING_SECONDS = 5.0
COMMAND_SECONDS = 60.0
#: What is kept of a command's last words: one line, and no longer than is read.
_LAST_WORDS = 200


class NotSentError(Exception):
    """A notice did not reach anybody; the text is one clause for a person, without the URL's own path."""


def url_doubt(url: str) -> str | None:
    """Return why a URL cannot be pinged, None where it can."""
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        return "it is no URL"
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
        return "it begins with neither http:// nor https:// and a host"
    if parts.username is not None:
        return "it holds a password, which everybody may read where the schedule is kept"
    return None if url.isprintable() and " " not in url else "it holds blanks or control characters"


def ping(url: str, event: str = "", document: str = "") -> None:
    """Post to a URL in the way of https://healthchecks.io: ``event`` is ``start``, ``fail``, or empty for success.

    ``document`` is the body, JSON. Raises NotSentError where no answer of success came in time.
    """
    parts = urlsplit(url)
    path = parts.path.rstrip("/") + f"/{event}" if event else parts.path
    request = Request(
        urlunsplit(parts._replace(path=path, fragment="")),
        data=document.encode(),
        headers={"Content-Type": "application/json", "User-Agent": "hermes-state-doctor"},
        method="POST",
    )
    # The path is what a stranger would need to ping in our place: only the host is told.
    where = f"the ping of {parts.hostname}"
    try:
        with _opener().open(request, timeout=PING_SECONDS) as answer:
            answer.read(1)
    except HTTPError as error:
        error.close()
        raise NotSentError(f"{where} was answered with {error.code}") from None
    except URLError as error:
        raise NotSentError(f"{where} failed ({_reason(error.reason)})") from None
    except (OSError, HTTPException, ValueError) as error:
        raise NotSentError(f"{where} failed ({_reason(error)})") from None


def call(command: str, document: str) -> None:
    """Run a command as the shell takes it, with the JSON on its standard input; what it prints goes nowhere.

    Raises NotSentError where it did not end well, or not in time; it is ended then, with all that it started (but for
    what took a session of its own).
    """
    try:
        process = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=sys.platform != "win32",
        )
    except (OSError, ValueError) as error:
        raise NotSentError(f"the command of --notify-command could not be run ({_reason(error)})") from None
    # At its end the pipes are closed, not read to theirs: what it started with a session of its own may hold them.
    with process:
        try:
            _, said = process.communicate(document.encode(), timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise NotSentError(f"the command of --notify-command took longer than {COMMAND_SECONDS:.0f} s") from None
        except BaseException:
            _kill(process)
            raise
    if process.returncode != 0:
        lines = said.decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][:_LAST_WORDS]}" if lines else ""
        raise NotSentError(f"the command of --notify-command ended with {process.returncode}{last}")


def _opener() -> OpenerDirector:
    """Return what opens http and https, by the environment's proxies, and nothing else."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler(),
        HTTPHandler(),
        HTTPSHandler(),
        HTTPRedirectHandler(),
        HTTPErrorProcessor(),
        HTTPDefaultErrorHandler(),
        UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _reason(error: object) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _kill(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
