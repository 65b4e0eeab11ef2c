"""The doctor of hermes-agent's ``state.db``: finds what is wrong, mends it, takes it back.

In Python: `stores`, `scan`, `plan`, `apply` and `undo`, of which `hermes_doctor.api` says all. They are loaded when
they are asked for, so that whoever only wants the version does not wait.
"""

__version__ = "0.1.0"

# As a name of its own: what runs before it is known where modules come from imports nothing, not even typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from hermes_doctor.api import apply, plan, scan, stores, undo
    from hermes_doctor.engine.model import ExitCode, Finding, Safety, Severity
    from hermes_doctor.engine.plan import StoreFix
    from hermes_doctor.engine.scan import CheckResult, Progress, StoreScan
    from hermes_doctor.engine.stopping import Stop
    from hermes_doctor.engine.transaction import Change
    from hermes_doctor.engine.undo import StoreUndo
    from hermes_doctor.host.bundle import Condition
    from hermes_doctor.host.homes import StoreRef
else:

    def __getattr__(name: str) -> object:
        """Load what is asked for (PEP 562)."""
        where = _WHERE.get(name)
        if where is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(f"hermes_doctor.{where}"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


_WHERE = {
    **dict.fromkeys(("apply", "plan", "scan", "stores", "undo"), "api"),
    **dict.fromkeys(("ExitCode", "Finding", "Safety", "Severity"), "engine.model"),
    **dict.fromkeys(("CheckResult", "Progress", "StoreScan"), "engine.scan"),
    "Change": "engine.transaction",
    "Condition": "host.bundle",
    "Stop": "engine.stopping",
    "StoreFix": "engine.plan",
    "StoreRef": "host.homes",
    "StoreUndo": "engine.undo",
}

__all__ = [
    "Change",
    "CheckResult",
    "Condition",
    "ExitCode",
    "Finding",
    "Progress",
    "Safety",
    "Severity",
    "Stop",
    "StoreFix",
    "StoreRef",
    "StoreScan",
    "StoreUndo",
    "__version__",
    "apply",
    "plan",
    "scan",
    "stores",
    "undo",
]
