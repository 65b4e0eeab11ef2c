"""`doctor lineage --json` (schemas/lineage.json)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hermes_doctor import __version__
from hermes_doctor.engine.lineage_tree import Node, Tree
from hermes_doctor.engine.model import ExitCode, Finding
from hermes_doctor.engine.scan import StoreScan
from hermes_doctor.report.document import plain
from hermes_doctor.store.cells import Cell, json_key
from hermes_doctor.store.clocks import trusted

FORMAT = "hermes-doctor.lineage"


def lineage_json(found: Sequence[tuple[StoreScan, Tree]], sqlite: str, code: ExitCode) -> str:
    """Return the trees of a session, one for each store that has it. ``sqlite``: the version that read them."""
    document = {
        "format": FORMAT,
        "format_version": 1,
        "tool": {"version": __version__, "sqlite": sqlite},
        "databases": [_database(scan, tree) for scan, tree in found],
        "exit_code": int(code),
    }
    return json.dumps(plain(document), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def _database(scan: StoreScan, tree: Tree) -> dict[str, object]:
    return {
        "path": scan.ref.path,
        "home": scan.ref.home,
        "profile": scan.ref.profile,
        "schema_version": scan.schema_version,
        "asked": json_key(tree.asked),
        "root": json_key(tree.root.id),
        "tip": json_key(tree.tip),
        "resumes": json_key(tree.resumes),
        "cut": tree.cut,
        "failed_checks": [result.check.name for result in scan.checks if result.status == "failed"],
        "sessions": [_session(node) for node in tree.nodes.values()],
    }


def _session(node: Node) -> dict[str, object]:
    return {
        "id": json_key(node.id),
        "parent": json_key(node.parent),
        "edge": node.edge.value if node.edge else None,
        "source": _text(node.source),
        "started_at": trusted(node.started_at),
        "ended_at": trusted(node.ended_at),
        "end_reason": _text(node.end_reason),
        "open": node.ended_at is None and node.end_reason is None,
        "messages": node.messages,
        "message_count": node.message_count if isinstance(node.message_count, int) else None,
        "findings": [_finding(finding) for finding in node.findings],
    }


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "severity": finding.severity.label,
        "table": finding.table,
        "key": json_key(finding.key),
        "summary": finding.summary,
        "fix": finding.fix.value,
        "action": finding.action,
        "refusal": finding.refusal,
    }


def _text(cell: Cell) -> str | None:
    return cell if isinstance(cell, str) else None
