"""The process from which the releases' subprocesses are forked: it has loaded what they all load from elsewhere.

Started as ``python -P nurse.py DESCRIPTOR`` with a socket of packets. Each packet is a JSON object (``arguments``,
``folder``, ``environment``, ``paths``) and brings four descriptors: standard input, output and error of the child, and
one on which are answered, a line each, the child's process id and, when it has ended, its exit code as subprocess
counts it. The end of the socket ends it.

It imports nothing of this project, and runs nothing of a release before the fork: in the child, driver.py runs as if
Python had just been started on it, and a release reads its home, makes its folders and opens its store by itself.
What the first child of a release had to read and compile, code and patterns, is kept ready for the later ones.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import re
import select
import socket
import sys
import threading
import time
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("driver.py")

#: What costs the eleven releases most to load, of the standard library and of other packages.
LOADED = (
    *("argparse", "ast", "asyncio", "base64", "bz2", "concurrent.futures.thread", "copy", "csv", "ctypes.util"),
    *("dataclasses", "datetime", "dateutil.parser", "decimal", "difflib", "email.message", "email.parser", "fractions"),
    *("getpass", "glob", "hashlib", "html", "http.client", "http.cookiejar", "http.server", "httpx", "importlib.util"),
    *("importlib.metadata", "importlib.resources", "inspect", "ipaddress", "logging", "lzma", "mimetypes", "mmap"),
    *("pickle", "pkgutil", "platform", "pprint", "psutil", "queue", "quopri", "random", "ruamel.yaml", "secrets"),
    *("shlex", "shutil", "signal", "sqlite3", "ssl", "subprocess", "sysconfig", "tempfile", "textwrap", "threading"),
    *("tomllib", "traceback", "typing", "unittest", "urllib.request", "uuid", "webbrowser", "yaml", "zipfile"),
    *("zoneinfo", "time_machine"),
)


def main() -> None:
    """Forks until the socket ends."""
    control = socket.socket(fileno=int(sys.argv[1]))
    driver = compile(DRIVER.read_bytes(), str(DRIVER), "exec")
    # time_machine would load it for its plugin; a release that finds it loaded takes itself for tested.
    sys.modules["pytest"] = None  # type: ignore[assignment]  # "not to be had"
    for name in LOADED:
        # A tester's machine may lack what only some releases need; they say so themselves.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    del sys.modules["pytest"]
    gc.collect()
    gc.freeze()
    codes: dict[str, types.CodeType] = {}
    load_from(codes)
    alive: dict[int, tuple[int, int, int]] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in alive:
                poll.unregister(descriptor)
                pid, status, lesson = alive.pop(descriptor)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, b"%d\n" % code)
                os.close(status)
                os.close(descriptor)
                with os.fdopen(lesson, "rb") as told:
                    learn(told.read(), codes)
                continue
            packet, given, _, _ = socket.recv_fds(control, 1 << 18, 4)
            if not packet:
                return
            lesson = os.memfd_create("lesson")
            told_at = f"/proc/{os.getpid()}/fd/{lesson}"
            pid = os.fork()
            if pid == 0:
                libraries = set(sys.modules)
                become(json.loads(packet), given)
                try:
                    exec(driver, vars(sys.modules["__main__"]))
                except SystemExit as ended:
                    leave(libraries, codes, told_at, ended.code)
                return
            *streams, status = given
            for stream in streams:
                os.close(stream)
            os.write(status, b"%d\n" % pid)
            watched = os.pidfd_open(pid)
            alive[watched] = (pid, status, lesson)
            poll.register(watched, select.POLLIN)


def load_from(codes: dict[str, types.CodeType]) -> None:
    """Lets imports take the code of a file from there, where it is there; it runs as if it had just been read."""
    read = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> types.CodeType | None:
        return codes.get(self.path) or read(self, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]  # for all imports of the children


def learn(lesson: bytes, codes: dict[str, types.CodeType]) -> None:
    """Makes ready what a child had to make by itself."""
    if not lesson:
        return
    told = json.loads(lesson)
    for name, file in told["modules"]:
        if code := SourceFileLoader(name, file).get_code(name):
            codes[file] = code
    for pattern, flags in told["patterns"]:
        re.compile(pattern, flags)
    gc.freeze()


def teach(libraries: set[str], codes: dict[str, types.CodeType], told_at: str) -> None:
    """Tells the nurse what this child had to read and compile, where it was much."""
    modules = []
    for name in set(sys.modules) - libraries:
        loader = getattr(sys.modules[name], "__loader__", None)
        if type(loader) is SourceFileLoader and loader.path not in codes:
            modules.append((name, loader.path))
    if len(modules) > 3:
        patterns = [(key[1], int(key[2])) for key in getattr(re, "_cache", ()) if key[0] is str]
        Path(told_at).write_text(json.dumps({"modules": modules, "patterns": patterns}))


def become(asked: dict[str, Any], given: list[int]) -> None:
    """Makes this child what Python would be, had it just been started on the driver."""
    for target, stream in enumerate(given[:3]):
        os.dup2(stream, target)
    os.closerange(3, 1 + max(int(name) for name in os.listdir("/proc/self/fd")))  # noqa: PTH208 (before anything opens)
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    os.chdir(asked["folder"])
    sys.argv[:] = [str(DRIVER), *asked["arguments"]]
    sys.path[:0] = asked["paths"]
    module = types.ModuleType("__main__")
    module.__file__ = str(DRIVER)
    sys.modules["__main__"] = module


def leave(libraries: set[str], codes: dict[str, types.CodeType], told_at: str, code: object) -> None:
    """Ends this child as Python ends, but for the libraries: to take them apart costs as much as all the rest."""
    teach(libraries, codes, told_at)
    threading._shutdown()  # type: ignore[attr-defined]  # what Python itself calls: it waits for the threads
    atexit._run_exitfuncs()
    for name in set(sys.modules) - libraries | {"__main__"}:
        vars(sys.modules.pop(name)).clear()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
