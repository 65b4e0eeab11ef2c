"""What takes more of a release than its SessionDB; runs in the subprocess, beside driver.py.

Each function gets the driver and keyword arguments. The release's own code does the work: its gateway's
session store, its API server's handlers, its delegation journal.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _gateway(driver: Any) -> Any:
    """The release's gateway SessionStore on the home, made once; it opens the store a second time."""
    store = getattr(driver, "gateway", None)
    if store is None:
        session = importlib.import_module("gateway.session")
        config = importlib.import_module("gateway.config")
        settings = config.GatewayConfig()
        # Up to 0.20.6 also at four in the morning, every day: what is tested must not hang on the hour.
        policy = getattr(settings, "default_reset_policy", None)
        if policy is not None and policy.mode in ("both", "daily"):
            policy.mode = "idle"
        store = session.SessionStore(driver.home / "sessions", settings)
        driver.gateway = store
        driver.closers.append(lambda: _close_gateway(driver))
    return store


def _close_gateway(driver: Any) -> None:
    close = getattr(driver.gateway, "close", None)
    if callable(close):
        close()
    elif getattr(driver.gateway, "_db", None) is not None:
        driver.gateway._db.close()
    driver.gateway = None


def gateway_message(driver: Any, *, platform: str, chat_id: str, user_id: str, chat_type: str) -> Any:
    """A message comes in from a messaging platform: the session that the gateway routes it to.

    Value: ``{"session_id": ..., "session_key": ...}``; row and routing entry are as the release writes them.
    """
    session = importlib.import_module("gateway.session")
    kind = importlib.import_module("gateway.config").Platform(platform)
    source = session.SessionSource(
        platform=kind, chat_id=chat_id, chat_name="a chat", chat_type=chat_type, user_id=user_id
    )
    entry = _gateway(driver).get_or_create_session(source)
    return {"session_id": entry.session_id, "session_key": entry.session_key}


def gateway_reset(driver: Any, *, session_key: str) -> Any:
    """``/new`` in a chat: the old session ends as ``session_reset``, the key gets a new one."""
    entry = _gateway(driver).reset_session(session_key)
    return {"session_id": entry.session_id, "session_key": entry.session_key}


def gateway_switch(driver: Any, *, session_key: str, session_id: str) -> Any:
    """``/resume`` in a chat: the key is pointed at another session."""
    entry = _gateway(driver).switch_session(session_key, session_id)
    return {"session_id": entry.session_id, "session_key": entry.session_key}


def gateway_touch(driver: Any, *, session_key: str) -> None:
    """A turn of that chat is over: the gateway brings its routing entry up to date."""
    _gateway(driver).update_session(session_key)


def api_fork(driver: Any, *, source: str, fork: str) -> Any:
    """POST /api/sessions/{source}/fork, through the release's own request handler (0.15 on).

    Value: the HTTP status. The handler reads the source with get_messages and writes the fork with
    replace_messages; up to 0.20.0 this wraps the JSON columns once more.
    """
    return _api(driver, "_handle_fork_session", {"session_id": source}, {"id": fork})


def api_create(driver: Any, *, session_id: str) -> Any:
    """POST /api/sessions, through the release's own request handler. Value: the HTTP status."""
    return _api(driver, "_handle_create_session", {}, {"id": session_id, "model": "test-model"})


def _api(driver: Any, handler: str, match: dict[str, str], body: dict[str, Any]) -> int:
    server = importlib.import_module("gateway.platforms.api_server")
    config = importlib.import_module("gateway.config")
    web = importlib.import_module("aiohttp.test_utils")

    async def request() -> int:
        adapter = server.APIServerAdapter(config.PlatformConfig(enabled=True))
        # The adapter's own override for a store that is open already; without it a second one is opened.
        adapter._session_db = driver.opened()
        made = web.make_mocked_request("POST", "/api/sessions", match_info=match)
        made._read_bytes = json.dumps(body).encode()
        response = await getattr(adapter, handler)(made)
        if response.status >= 400:
            raise RuntimeError(f"{handler}: {response.status} {response.text}")
        return int(response.status)

    return asyncio.run(request())


def running_delegation(
    driver: Any, *, delegation_id: str, parent: str, session_key: str, owner_pid: int, dispatched_at: float
) -> Any:
    """A background delegation that is under way, written by the release's own journal (0.19 on).

    ``owner_pid`` must be alive: this subprocess is gone in a moment, and with it the delegation would be lost.
    Value: the row as the release reads it.
    """
    module = importlib.import_module("tools.async_delegation")
    record = {
        "delegation_id": delegation_id,
        "goal": "look something up",
        "context": None,
        "toolsets": None,
        "role": "worker",
        "model": None,
        "session_key": session_key,
        "origin_ui_session_id": "",
        "origin_session_id": parent,
        "parent_session_id": parent,
        "status": "running",
        "dispatched_at": dispatched_at,
        "completed_at": None,
    }
    own_pid: Callable[[], int] = os.getpid
    os.getpid = lambda: owner_pid
    try:
        module._persist_dispatch(record)
    finally:
        os.getpid = own_pid
    return module.get_durable_delegation(delegation_id)


def recover_delegations(driver: Any) -> Any:
    """What a release does at its start with delegations whose owner is gone. Value: how many it gave up."""
    return importlib.import_module("tools.async_delegation").recover_abandoned_delegations()


def signature(driver: Any, *, method: str) -> str | None:
    """The signature of ``SessionDB.<method>`` in this release; None where it has none."""
    found = getattr(type(driver.opened()), method, None)
    return None if found is None else str(inspect.signature(found))


def surroundings(driver: Any) -> dict[str, Any]:
    """What this process was given at its start, and what a release has loaded and made once its store is open."""
    streams = [sys.stdin, sys.stdout, sys.stderr]
    early = _of_the_release()
    driver.opened()
    return {
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "arguments": list(sys.argv),
        "path": list(sys.path),
        "main": [str(vars(sys.modules["__main__"]).get(name)) for name in ("__name__", "__file__", "LOOPBACK")],
        "flags": str(sys.flags),
        "streams": [[stream.fileno(), stream.encoding, stream.errors, stream.line_buffering] for stream in streams],
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "encoding": sys.getfilesystemencoding(),
        "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals()) if number < 32],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "time zone": list(time.tzname),
        "temporary": tempfile.gettempdir(),
        "threads": threading.active_count(),
        "pytest": "pytest" in sys.modules,
        "of the release before": early,
        "of the release": _of_the_release(),
        "made": sorted(str(path) for path in driver.home.rglob("*")),
    }


def _of_the_release() -> list[str]:
    folder = os.environ["PYTHONPATH"]
    files = {name: str(getattr(module, "__file__", None)) for name, module in sys.modules.items()}
    return sorted(name for name, file in files.items() if file.startswith(folder))


def resolve(driver: Any, *, host: str) -> str:
    """Looks a host name up; there is no network, so it must fail."""
    return socket.gethostbyname(host)


def cli_branch(driver: Any, *, session: str) -> Any:
    """The CLI's ``/branch`` on a session that it has loaded, by the release's own command (0.19 on). Value: its id."""
    screen = types.ModuleType("cli")
    for name in ("_cprint", "_sync_process_session_id"):
        setattr(screen, name, lambda *_given: None)
    sys.modules["cli"] = screen
    commands = importlib.import_module("hermes_cli.cli_commands_mixin")
    chat = types.SimpleNamespace(
        conversation_history=driver.opened().get_messages_as_conversation(session),
        _session_db=driver.opened(),
        session_id=session,
        agent=None,
        model="test-model",
        max_turns=90,
        reasoning_config=None,
        _transfer_session_yolo=lambda *_ids: None,
    )
    commands.CLICommandsMixin._handle_branch_command(chat, "/branch")
    return chat.session_id


def tui_branch(driver: Any, *, session: str) -> Any:
    """``session.branch`` of the terminal UI, by the release's own handler (0.13 to 0.20.6). Value: the branch's id."""
    sys.modules.setdefault("dotenv", types.SimpleNamespace(load_dotenv=lambda *_a, **_k: False))  # type: ignore[arg-type]  # a stand-in
    server = importlib.import_module("tui_gateway.server")
    modules = [server]
    if importlib.util.find_spec("tui_gateway.methods_session"):
        modules.append(importlib.import_module("tui_gateway.methods_session"))
    for module in modules:
        # No model is there to answer.
        for name in ("_make_agent", "_init_session"):
            setattr(module, name, lambda *_given, **_named: None)
    store = driver.opened()
    server._sessions["live"] = {
        "session_key": session,
        "history": store.get_messages_as_conversation(session),
        "history_lock": threading.Lock(),
        "agent": object(),
        "cols": 80,
        "agent_ready": None,
        "source": "tui",
    }
    known = {row[0] for row in store._conn.execute("SELECT id FROM sessions")}
    answer = server._methods["session.branch"]("1", {"session_id": "live", "name": ""})
    made = [row[0] for row in store._conn.execute("SELECT id FROM sessions") if row[0] not in known]
    if len(made) != 1:
        raise RuntimeError(f"session.branch: {answer}")
    return made[0]
