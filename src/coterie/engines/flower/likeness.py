"""Whether a node's boundary is the server's, and its secret the other nodes': one that differs would spoil every mean."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from coterie.boundary import Boundary

SHORT = 1 << 64
"""A secret below is refused at a real node: the server has its digest, and tries out shorter ones."""

BOUNDARY, SETTINGS, SECRET = "coterie.boundary", "settings", "secret"


def told(boundary: Boundary) -> ConfigRecord:
    """What a node's replies tell of its boundary: the settings, and a digest of the secret, which tells equal from unequal.

    Who guesses a secret can check the guess, so it has to be long: see :data:`SHORT`.
    """
    digest = hashlib.sha256(f"coterie boundary {boundary.secret}".encode()).hexdigest()
    return ConfigRecord({SETTINGS: _settings(boundary), SECRET: digest if boundary.secret is not None else ""})


def unlike(content: RecordDict, boundary: Boundary, secret: str | None) -> str | None:
    """Why a reply cannot be used where the server has ``boundary`` and the clients a secret; None if it can."""
    if BOUNDARY not in content:
        if boundary == Boundary():
            return None
        return "it has no boundary, and the server's strategy has one; its app needs the mod boundary_mod"
    if (has := _told(content)) != _settings(boundary):
        return f"its boundary is {_short(has)}, and the server's is {_short(_settings(boundary))}"
    if secret is not None and secret_of(content) != secret:
        return "its boundary's secret is another than the other clients'"
    return None


def secret_of(content: RecordDict) -> str:
    """The digest of a node's secret; empty where it has none."""
    found = content.get(BOUNDARY)
    return str(found.get(SECRET, "")) if isinstance(found, ConfigRecord) else ""


def most(digests: Iterable[str]) -> str | None:
    """The digest that most clients tell; None where there are none."""
    common = Counter(digests).most_common(1)
    return common[0][0] if common else None


def agrees(content: RecordDict, boundary: Boundary) -> bool:
    """Whether a reply tells of the settings of ``boundary``."""
    return bool(_told(content) == _settings(boundary))


def _told(content: RecordDict) -> Any:
    found = content.get(BOUNDARY)
    return found.get(SETTINGS) if isinstance(found, ConfigRecord) else None


def _settings(boundary: Boundary) -> str:
    """All settings but the secret, as one line of JSON."""
    return json.dumps(asdict(replace(boundary, secret=None)), sort_keys=True)


def _short(text: Any) -> str:
    """The settings that are not the usual ones."""
    try:
        found, usual = json.loads(str(text)[:10_000]), asdict(Boundary())
        return ", ".join(f"{name} {value}" for name, value in found.items() if usual.get(name) != value) or "none"
    except (ValueError, AttributeError, RecursionError):
        return "unreadable"
