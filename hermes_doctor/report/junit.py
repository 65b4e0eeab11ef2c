"""`doctor scan --format junit`: a JUnit report, for CI servers that show such.

A store is a test suite, each check a test case of it, with one more, ``store``, for whether the store could be read
to its end. A test case fails where findings count for ``--fail-on``; it is in error where the check could not do its
work. So the report is green just where the exit code is 0. Examples stand in the failure's text, as in the table;
findings beneath ``--fail-on`` in the suite's ``system-out``. Muted checks are skipped, and say until when.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from hermes_doctor.engine.model import Bucket, Severity
from hermes_doctor.report.sums import Sums
from hermes_doctor.report.table import CLOSED, CONDITION_WORDS, notes_of, steps_of, told
from hermes_doctor.report.words import counted, muted_words, number, visible

if TYPE_CHECKING:
    from hermes_doctor.engine.model import Finding
    from hermes_doctor.engine.scan import CheckResult, StoreScan
    from hermes_doctor.report.layout import Look
    from hermes_doctor.report.model import RunEnd, RunStart


class ScanJunit:
    """The report, a suite at a time; complete once `end` has been called."""

    def __init__(self, stream: TextIO, look: Look) -> None:
        self._stream = stream
        self._limit = look.limit
        self._sums = Sums()
        self._suites = 0
        self._began = 0.0
        self._fail_on: Severity | None = None

    def begin(self, start: RunStart) -> None:
        """Write the head."""
        self._began, self._fail_on = start.started_at, start.fail_on
        self._stream.write('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n')

    def store(self, scan: StoreScan) -> None:
        """Write one store's suite."""
        suite = _Suite(str(scan.ref.path))
        notes = notes_of(scan)
        broken = scan.condition in CLOSED or scan.stopped is not None
        suite.case("store", 0.0, _broken(scan) if broken else "")
        examples = self._sums.take(scan, self._limit)
        beneath: list[str] = [] if broken else notes
        for result in scan.checks:
            outcome = self._outcome(result, examples)
            suite.case(result.check.name, result.seconds, outcome)
            if result.count and not outcome:
                beneath.append(f"{result.check.name}: {_sum(result)}")
        properties = {
            "profile": scan.ref.profile,
            "condition": scan.condition.value,
            "schema_version": scan.schema_version,
            "bytes": scan.bytes,
            "sessions": scan.sessions,
            "messages": scan.messages,
        }
        self._write(suite, scan.seconds, properties, beneath)

    def end(self, end: RunEnd) -> None:
        """Write a suite in error for each store whose turn did not come, and complete the report."""
        for path in end.not_scanned:
            suite = _Suite(str(path))
            suite.case("store", 0.0, _element("error", "stopped", "the scan was stopped before it was read", ()))
            self._write(suite, 0.0, {}, ())
        self._stream.write("</testsuites>\n")

    def _outcome(self, result: CheckResult, examples: Mapping[str, list[Finding]]) -> str:
        """Return what makes a check's test case no success, "" where it is one."""
        name = result.check.name
        if result.status == "failed":
            return _element("error", "failed", result.reason or "it could not be checked in full", ())
        if result.muted is not None:
            return _element("skipped", None, f"{muted_words(result.muted)}: {_sum(result)} not counted", ())
        if result.status == "skipped" and not result.count:
            return _element("skipped", None, result.reason or "", ())
        if self._fail_on is None or result.worst is None or result.worst < self._fail_on:
            return ""
        kept = examples.get(name, [])
        lines = [result.check.meaning]
        for finding in kept:
            lines += [told(finding, result.check), *steps_of(finding)]
        lines += [f"… and {number(result.count - len(kept))} more"] if result.count > len(kept) else []
        return _element("failure", result.worst.label, _sum(result), [*lines, f"Next: doctor explain {name}"])

    def _write(self, suite: _Suite, seconds: float, properties: Mapping[str, object], beneath: Iterable[str]) -> None:
        attributes = {
            "name": suite.name,
            "package": "hermes-state-doctor",
            "id": self._suites,
            "tests": suite.tests,
            "failures": suite.failures,
            "errors": suite.errors,
            "skipped": suite.skipped,
            "time": f"{seconds:.3f}",
            "timestamp": datetime.fromtimestamp(self._began, UTC).strftime("%Y-%m-%dT%H:%M:%S"),
            "hostname": socket.gethostname() or "localhost",
        }
        self._suites += 1
        known = [(name, value) for name, value in properties.items() if value is not None]
        self._stream.write(f" <testsuite{_attributes(attributes)}>\n  <properties>\n")
        self._stream.writelines(
            f"   <property{_attributes({'name': name, 'value': value})}/>\n" for name, value in known
        )
        self._stream.write("  </properties>\n")
        self._stream.writelines(suite.cases)
        out = _lines(beneath)
        self._stream.write(f"  <system-out>{out}</system-out>\n  <system-err></system-err>\n </testsuite>\n")


class _Suite:
    """Test cases of one store, counted."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cases: list[str] = []
        self.failures = self.errors = self.skipped = 0

    @property
    def tests(self) -> int:
        return len(self.cases)

    def case(self, name: str, seconds: float, outcome: str) -> None:
        """Add a test case; ``outcome``: the element that makes it no success, or ""."""
        self.failures += outcome.startswith("<failure")
        self.errors += outcome.startswith("<error")
        self.skipped += outcome.startswith("<skipped")
        start = f"  <testcase{_attributes({'classname': self.name, 'name': name, 'time': f'{seconds:.3f}'})}"
        self.cases.append(f"{start}>{outcome}</testcase>\n" if outcome else f"{start}/>\n")


def _broken(scan: StoreScan) -> str:
    """Return why the store could not be read to its end."""
    following = [f"Next: {scan.next_step}"] if scan.next_step else []
    if scan.condition in CLOSED:
        return _element("error", scan.condition.value, scan.reason or CONDITION_WORDS[scan.condition], following)
    return _element("error", "stopped", scan.stopped or "stopped", following)


def _sum(result: CheckResult) -> str:
    safe = result.buckets[Bucket.SAFE]
    return f"{counted(result.count, 'finding')}, {number(safe)} {'mends' if safe == 1 else 'mend'} safely"


def _element(name: str, kind: str | None, message: str, lines: Iterable[str]) -> str:
    attributes = {"message": message} if kind is None else {"type": kind, "message": message}
    return f"<{name}{_attributes(attributes)}>{_lines(lines)}</{name}>"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(_text(visible(line)) for line in lines)


def _attributes(values: Mapping[str, object]) -> str:
    return "".join(f' {name}="{_text(visible(str(value)))}"' for name, value in values.items())


def _text(text: str) -> str:
    """Return text as XML, in ASCII: it reads the same whatever the encoding of the stream is.

    What is printable can stand in XML, and nothing else is left in the text but ends of lines.
    """
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    return escaped.encode("ascii", "xmlcharrefreplace").decode()
