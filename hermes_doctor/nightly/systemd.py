"""Nightly checks through systemd: a timer and a oneshot service, of the user, or of the system for root."""

from __future__ import annotations

import os
import re
from pathlib import Path
from subprocess import CompletedProcess

from hermes_doctor.nightly.schedule import (
    NAME,
    Installed,
    Job,
    Owner,
    OwnFile,
    Piece,
    RefusedError,
    ScheduleError,
    ask,
    is_there,
    last_line,
    refuse_others,
    sealed,
)

SERVICE, TIMER = f"{NAME}.service", f"{NAME}.timer"
SYSTEM_UNITS = Path("/etc/systemd/system")

#: There while systemd is what started the machine (sd_booted(3)).
_BOOTED = Path("/run/systemd/system")
_LINGER = Path("/var/lib/systemd/linger")

_AT = re.compile(r"^OnCalendar=\*-\*-\* ([0-9]{2}:[0-9]{2}):00$", re.MULTILINE)

_TIMER = """\
[Unit]
Description=Nightly check of the state.db of hermes-agent

[Timer]
OnCalendar=*-*-* {at}:00
RandomizedDelaySec=30min
Persistent=true

[Install]
WantedBy=timers.target
"""

#: 1: something new was found, which is no failure of the service.
_SERVICE = """\
[Unit]
Description=Nightly check of the state.db of hermes-agent

[Service]
Type=oneshot
{environment}ExecStart={command}
SuccessExitStatus=1
Nice=19
CPUSchedulingPolicy=idle
IOSchedulingClass=idle
UMask=0077
{hardening}"""

#: What the doctor has no use for. None of it needs a namespace of its own, which not every kernel gives to users, and
#: in which the doctor could not see who has a store open.
_CONFINED = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictNamespaces=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
)
#: The same for root, whom more is open to. Other users' stores and processes are looked at, and mended as their owner.
_CONFINED_ROOT = (
    "CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_LEASE CAP_SETGID CAP_SETUID"
    " CAP_SYS_PTRACE",
    "KeyringMode=private",
)
#: For root also where a command of the user's is called, which may have to send mail.
_SYSTEM = (
    "ProtectSystem=full",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
)


class SystemdTimer:
    """The timer and the service in one folder of units. ``system``: the machine's own, not the user's."""

    name = "systemd"

    def __init__(self, folder: Path, *, system: bool) -> None:
        self._system = system
        self._service = OwnFile(folder / SERVICE)
        self._timer = OwnFile(folder / TIMER)
        self._files = (self._service, self._timer)

    @classmethod
    def of_user(cls) -> SystemdTimer:
        """Return that of whoever runs the doctor: the system's for root."""
        if os.geteuid() == 0:
            return cls(SYSTEM_UNITS, system=True)
        named = os.environ.get("XDG_CONFIG_HOME", "").strip()
        config = Path(named) if named and Path(named).is_absolute() else Path.home() / ".config"
        return cls(config / "systemd" / "user", system=False)

    def usable(self) -> str | None:
        """Return why it cannot be used, None where it can."""
        if not _BOOTED.is_dir() or not is_there("systemctl"):
            return "systemd does not run this machine"
        if not self._system and not (_runtime_folder() / "systemd" / "private").exists():
            return "systemd runs no services for you here (it does where you log in yourself, or linger)"
        return None

    def pieces(self, job: Job) -> list[Piece]:
        """Return the two units. Raises RefusedError for a word that a unit cannot hold."""
        confined = [*(_SYSTEM if self._system else ())]
        if job.confined:
            confined += [*_CONFINED, *(_CONFINED_ROOT if self._system else ())]
        service = _SERVICE.format(
            environment="".join(
                f"Environment={_quoted(f'{name}={value}', dollar='$')}\n" for name, value in job.environment.items()
            ),
            command=" ".join(_quoted(word) for word in job.words),
            hardening="".join(f"{line}\n" for line in confined),
        )
        return [
            Piece(str(self._service.path), sealed(service, "# ")),
            Piece(str(self._timer.path), sealed(_TIMER.format(at=job.at), "# ")),
        ]

    def commands(self) -> list[str]:
        """Return what is run once the units are written."""
        return [" ".join(self._systemctl(*words)) for words in (("daemon-reload",), ("enable", "--now", TIMER))]

    def installed(self) -> list[Installed]:
        """Return the units that are there."""
        found = _AT.search(self._timer.read() or "")
        return [
            Installed(str(file.path), owner, found[1] if found else None)
            for file in self._files
            if (owner := file.owner()) is not Owner.NOBODY
        ]

    def install(self, job: Job, *, force: bool) -> bool:
        """Write the units and start the timer; what was there before is put back where that fails."""
        pieces = self.pieces(job)
        refuse_others([(str(file.path), file.owner()) for file in self._files], force=force, verb="write over")
        before = [file.read() for file in self._files]
        changed = before != [piece.text for piece in pieces]
        try:
            if changed:
                for file, piece in zip(self._files, pieces, strict=True):
                    file.write(piece.text)
                self._reload()
            # Also where nothing changed: somebody may have stopped it.
            self._do("enable", *(["--now"] if self.usable() is None else []), TIMER)
        except ScheduleError:
            if changed:
                for file, text in zip(self._files, before, strict=True):
                    file.put_back(text)
            raise
        return changed

    def remove(self, *, force: bool) -> list[str]:
        """Stop the timer, and remove the units and what systemd keeps for them."""
        there = [(file, owner) for file in self._files if (owner := file.owner()) is not Owner.NOBODY]
        refuse_others([(str(file.path), owner) for file, owner in there], force=force, verb="remove")
        if not there:
            return []
        self._do("disable", *(["--now"] if self.usable() is None else []), TIMER)
        if self.usable() is None:
            # When it last ran, for Persistent=. Not every systemd can: then it stays, a file of no bytes.
            self._call("clean", "--what=state", TIMER)
        for file, _owner in there:
            file.remove()
        self._reload()
        return [str(file.path) for file, _owner in there]

    def hindrances(self) -> list[str]:
        """Return what keeps the timer from running."""
        doubt = self.usable()
        if doubt is not None:
            return [f"{doubt[0].upper()}{doubt[1:]}: the timer waits until it does."]
        if self._call("is-active", "--quiet", TIMER).returncode != 0:
            return [f"The timer is not active. Next: {' '.join(self._systemctl('enable', '--now', TIMER))}"]
        return []

    def remarks(self) -> list[str]:
        """Return that a user's timer waits for its user, unless systemd was told otherwise."""
        if self._system or self.usable() is not None or self._lingers():
            return []
        return [
            "It runs while you are logged in; what was missed is made up for when you come back."
            " To have it run without you: loginctl enable-linger"
        ]

    def _lingers(self) -> bool:
        import getpass

        try:
            return (_LINGER / getpass.getuser()).exists()
        except (KeyError, OSError):
            return True

    def _systemctl(self, *words: str) -> list[str]:
        return ["systemctl", *([] if self._system else ["--user"]), *words]

    def _reload(self) -> None:
        if self.usable() is None:
            self._do("daemon-reload")

    def _call(self, *words: str) -> CompletedProcess[bytes]:
        # Without a systemd at work (in the building of an image, say) it only lays its links.
        more = {} if self.usable() is None else {"SYSTEMD_OFFLINE": "1"}
        if not self._system:
            more["XDG_RUNTIME_DIR"] = str(_runtime_folder())
        return ask(self._systemctl(*words), more=more)

    def _do(self, *words: str) -> None:
        done = self._call(*words)
        if done.returncode != 0:
            command = " ".join(self._systemctl(*words))
            raise ScheduleError(f"{command} failed: {last_line(done)}. Next: the same once it works, or --with cron")


def _runtime_folder() -> Path:
    named = os.environ.get("XDG_RUNTIME_DIR", "").strip()
    return Path(named) if named else Path(f"/run/user/{os.geteuid()}")


def _quoted(word: str, dollar: str = "$$") -> str:
    """Return a word as a unit holds it (systemd.service(5), "Command lines"). ``dollar``: what stands for a ``$``."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise RefusedError(
            "a path whose name is no text cannot be named in a unit of systemd. Nothing was changed."
            " Next: name a folder above it, or a link to it"
        ) from None
    signs = {"\\": "\\\\", '"': '\\"', "%": "%%", "$": dollar}
    escaped = "".join(signs.get(c) or (c if c.isprintable() else _escaped(c)) for c in word)
    plain = re.fullmatch(r"[\w@+:,./=-]+", word)
    return word if plain else f'"{escaped}"'


def _escaped(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())
