"""A real Chromium, spoken to over the pipe that it offers for that (DevTools protocol); no driver stands between."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Seconds in which a page has to be there.
_PATIENCE = 60

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
)
#: Chromium reads its commands from descriptor 3 and answers on 4.
_HAND_OVER = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
#: What the keys that tests press are called in the protocol.
_KEYS = {
    "Tab": {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9},
    "Enter": {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
}


class Page:
    """One tab. ``requests``: what it asked for; ``said``: what its console holds."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        self.said: list[str] = []
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Sends one command and returns its result."""
        return self._browser.call(method, self._session, self._note, **parameters)

    def resize(self, width: int, height: int = 844, *, dark: bool = False) -> None:
        """Gives the page a width in pixels, and a theme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])

    def open(self, file: Path) -> None:
        """Opens a file and waits until it is drawn."""
        self.call("Page.navigate", url=file.as_uri())
        end = time.monotonic() + _PATIENCE
        while self.run("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < end
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """Returns what a script comes to in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Presses and releases a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **_KEYS[key])

    def picture(self) -> str:
        """Returns all of the page as a PNG in base64."""
        data: str = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        return data

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        match event["method"]:
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            case "Log.entryAdded":
                self.said.append(told["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.said.append(json.dumps(told))


class Browser:
    """A running Chromium."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._buffer = b""
        self._number = 0

    def page(self) -> Page:
        """Opens a tab."""
        target = self.call("Target.createTarget", None, None, url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", None, None, targetId=target, flatten=True)["sessionId"]
        return Page(self, session)

    def call(self, method: str, session: str | None, note: Any, **parameters: Any) -> Any:
        """Sends a command and waits for its answer; events that come before go to ``note``."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            if note is not None and "method" in told and told.get("sessionId") == session:
                note(told)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._answers, 1 << 16)
            assert read, "the browser is gone"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def browsing(binary: str, profile: Path) -> Iterator[Browser]:
    """Runs the browser with an empty profile in a folder, and ends it."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # Out of the way of the descriptors that they are to become.
    handed = [fcntl.fcntl(number, fcntl.F_DUPFD, 10) for number in (theirs_in, theirs_out)]
    command = [sys.executable, "-c", _HAND_OVER, *map(str, handed), binary, *_FLAGS, f"--user-data-dir={profile}"]
    running = subprocess.Popen(
        [*command, "about:blank"],
        pass_fds=handed,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )
    for number in (theirs_in, theirs_out, *handed):
        os.close(number)
    browser = Browser(ours_out, ours_in)
    try:
        yield browser
        browser.call("Browser.close", None, None)
    finally:
        os.close(ours_out)
        os.close(ours_in)
        try:
            running.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
