"""The groups of a run as a page knows them. Methods that make them anew in every round may have tens of thousands."""

from __future__ import annotations

from collections import Counter
from typing import Any

from coterie.report.gathered import Gathered
from coterie.report.nodes import Node
from coterie.report.summary import mean_of

CLIENTS = 60
"""Clients of a group that are named on a page."""

PARENTS = 6
"""Groups that it came from that are named."""


def groups(run: Gathered) -> dict[str, Any]:
    """nodes: of each group id, first, last (round), count, clients (the first :data:`CLIENTS`), parents, kind, why (position in
    reasons, or None), truth (``[true group, clients of it]``), and what :func:`scored` says. reasons: texts, each once.
    """
    truth = run.truth
    reasons: dict[str, int] = {}
    return {"nodes": [_told(node, run, truth, reasons) for node in run.nodes], "reasons": list(reasons)}


def _told(node: Node, run: Gathered, truth: dict[int, int], reasons: dict[str, int]) -> dict[str, Any]:
    inside = Counter(truth[client] for client in node.clients if client in truth)
    return {
        "id": node.id, "first": node.first, "last": node.last, "count": len(node.clients),
        "clients": node.clients[:CLIENTS], "parents": node.parents[:PARENTS], "kind": node.kind,
        "why": reasons.setdefault(node.why, len(reasons)) if node.why else None, "truth": sorted(inside.items()),
        **scored(node, run),
    }  # fmt: skip


def scored(node: Node, run: Gathered) -> dict[str, Any]:
    """Mean accuracy and loss of a group's honest members, and in which round (tested): as last tested while it was there."""
    at = next((i for i in range(node.last - 1, node.first - 2, -1) if run.lines[i]["tested"]), None)
    if at is None:
        return {"tested": None, "accuracy": None, "loss": None}
    line = run.lines[at]
    members = line["groups"][run.places[at].index(node.id)]
    return {
        "tested": line["round"], "accuracy": mean_of(line, members), "loss": mean_of(line, members, "loss"),
    }  # fmt: skip
