"""Start-up: make sure that what runs is the doctor's own code, then hand over to the commands.

Everything imported here before the guard has looked comes from wherever the path says, so only modules that the
interpreter has loaded anyway are: no pathlib, no typing, not even ``__future__``.
"""
# pathlib would be looked for on a path that is not yet trusted:
# ruff: noqa: PTH100, PTH109, PTH118, PTH120

import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main() -> int:
    """Run the command line and return its exit code; never raises, never shows a traceback."""
    heard = _note_signals()
    _plug_closed_streams()
    _leave_working_directory()
    intruder = _find_intruder()
    if intruder is not None:
        sys.stderr.write(f"doctor: {intruder}\n")
        return 3
    try:
        from hermes_doctor.cli.run import run
    except ImportError as error:
        sys.stderr.write(
            f"doctor: a package that the doctor needs is missing: {error.name}."
            " Next: pip install --upgrade --force-reinstall hermes-state-doctor\n"
        )
        return 3
    return run(sys.argv[1:], heard)


def _note_signals() -> list[int]:
    """Note signals that ask for an end until the commands take them over; return the list that they come to.

    Raised in the midst of an import they would become errors of other kinds, or tracebacks.
    """
    # Built in: it comes from nowhere else, whatever the path says.
    import _signal  # type: ignore[import-not-found]  # no stub tells of it

    heard: list[int] = []
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(_signal, name, None)
        # Whoever started us with nohup wants the signal ignored.
        if number is not None and _signal.getsignal(number) not in (_signal.SIG_IGN, None):
            _signal.signal(number, lambda number, _frame: heard.append(number))
    return heard


def _plug_closed_streams() -> None:
    """Put the null device where standard input, output or error is closed.

    Else the next file that is opened gets that number, and what is meant for a stream is written into it.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)
    # Python sets a stream to None where it found it closed.
    streams: dict[str, object] = vars(sys)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if streams[name] is None:
            streams[name] = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  (lives on)


def _leave_working_directory() -> None:
    """Take the working directory off the import path (``python -m`` puts it first), unless it is ours."""
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:  # it was deleted from under us: nothing can be imported from it
        return
    own = [_ROOT, os.path.dirname(os.__file__)]
    site = sys.modules.get("site")
    if site is not None:
        own += site.getsitepackages()
    if here in (os.path.realpath(folder) for folder in own):
        return
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != here]


def _find_intruder() -> str | None:
    """Say which package stands where the doctor's own `checks` or `fixes` should be found; None if all is well.

    Their names are common, and PyPI's ``hermes-doctor`` (somebody else's) overwrites packages of ours.
    """
    import importlib.util

    for name in ("checks", "fixes"):
        own = os.path.join(_ROOT, name)
        spec = importlib.util.find_spec(name)
        if spec is None:
            return (
                f"its package '{name}' is missing from {_ROOT}."
                " Next: pip install --upgrade --force-reinstall hermes-state-doctor"
            )
        places = [os.path.dirname(spec.origin)] if spec.origin else list(spec.submodule_search_locations or [])
        if [os.path.realpath(place) for place in places] != [os.path.realpath(own)]:
            where = ", ".join(places) or "built in"
            return (
                f"another package called '{name}' is in the way: {where}. The doctor runs only its own, {own}."
                " Next: install it into an environment of its own (pipx install hermes-state-doctor)"
                " and unset PYTHONPATH"
            )
    return None


if __name__ == "__main__":
    sys.exit(main())
