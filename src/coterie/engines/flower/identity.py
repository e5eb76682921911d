"""Which client a node may be: the one that it names, the first to name it with this key, or the one that a list has for it.

Every SuperNode signs its requests with a key, and Flower tells the server the public half of it. With node authentication
that key is a file at the client, registered by the operator, and the same after a restart: who has the key is proved. Without,
a SuperNode makes a new key at each start, so nothing about a node outlasts it.
"""

from __future__ import annotations

import base64
import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from coterie.core import Client
from coterie.files import read_regular, reason
from coterie.settings import SettingError, UserError, nearest

CLAIMED, FIRST, LISTED = "claimed", "first", "listed"

_KEY_FILE, _LIST_FILE = 1 << 16, 1 << 20
"""Bytes of a public key's file, and of a list of clients, at most."""


class Refused(ValueError):
    """A node that is not the client that it says; one sentence."""


def fingerprint(key: bytes) -> str:
    """Of a public key as Flower tells it, in the words of ``ssh-keygen -l``; of other bytes, as in a simulation, likewise."""
    try:
        words = load_pem_public_key(key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (ValueError, UnsupportedAlgorithm):
        return _digest(key)
    return _digest(base64.b64decode(words.split()[1]))


def _digest(data: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def badges(node: int, key: bytes) -> tuple[str, ...]:
    """What a node is known by: its key, where Flower tells one, and its id. The first one outlasts the other."""
    return (fingerprint(key), f"node {node}") if key else (f"node {node}",)


def listed(clients: Mapping[Any, Any], folder: Path, name: str) -> dict[Client, str]:
    """Client -> the badge of its node, from a list of public key files, fingerprints and node ids.

    Args:
        clients: client -> the path of a public key in OpenSSH's format, ``"SHA256:..."``, or a node id.
        folder: where the paths begin.
        name: of the list, for errors.

    Raises:
        SettingError: an entry is none of these, or a node is listed twice.
    """
    found: dict[Client, str] = {}
    for key, value in clients.items():
        client = int(key) if str(key).isascii() and str(key).isdigit() and len(str(key)) < 19 else None
        if client is None:
            raise SettingError(f"{name} lists clients by their ids, whole numbers >= 0, got {str(key)[:40]!r}")
        if type(value) is int and 0 <= value < 2**64:
            badge = f"node {value}"
        elif isinstance(value, str) and value.startswith("SHA256:"):
            badge = value.strip().rstrip("=")
        elif isinstance(value, (str, Path)) and str(value):
            badge = _of_file(folder / value, client, name)
        else:
            raise SettingError(
                f"{name} must give client {client} a public key file, a fingerprint SHA256:... or a node id, got {value!r}"
            )
        for other, its in found.items():
            if its == badge:
                raise SettingError(f"{name} gives {badge} to client {other} and to client {client}; a node is one client")
        found[client] = badge
    if not found:
        raise SettingError(f"{name} lists no client")
    return found


def _of_file(path: Path, client: Client, name: str) -> str:
    try:
        key = load_ssh_public_key(read_regular(path, limit=_KEY_FILE))
        return fingerprint(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except OSError as error:
        why = reason(error)
    except (ValueError, UserError, UnsupportedAlgorithm) as error:
        why = str(error)
    raise SettingError(f"{name} gives client {client} the public key file {path}, which cannot be read: {why}")


def from_file(path: Path | str) -> Identity:
    """By the list in a TOML file of lines ``0 = "client-0.key.pub"``; paths begin at the file's folder. Raises
    :class:`~coterie.settings.SettingError`."""
    path = Path(path)
    try:
        found = tomllib.loads(read_regular(path, limit=_LIST_FILE).decode())  # node ids have 64 bits without a sign
    except OSError as error:
        raise SettingError(f"the list of clients {path} cannot be read: {reason(error)}") from None
    except UserError as error:
        raise SettingError(f"the list of clients {error}") from None
    except (ValueError, RecursionError) as error:
        raise SettingError(f"the list of clients {path} is no TOML file: {error}") from None
    return Identity(LISTED, listed(found, path.parent, f"the list of clients {path}"))


@dataclass
class Identity:
    """Which client a node is. rule: ``claimed``, ``first`` or ``listed``. owners: client -> the badge of its node."""

    rule: str = CLAIMED
    owners: dict[Client, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: str | Mapping[Client, Any] | Identity) -> Identity:
        """From a strategy's setting. Raises :class:`~coterie.settings.SettingError`."""
        if isinstance(given, Identity):
            return given
        if isinstance(given, Mapping):
            return cls(LISTED, listed(given, Path(), "MethodStrategy.identity"))
        if given not in (CLAIMED, FIRST):
            near = nearest(given, (CLAIMED, FIRST))
            raise SettingError(
                f"MethodStrategy.identity must be {CLAIMED}, {FIRST} or a mapping of clients to keys, got {given!r}{near}"
            )
        return cls(given)

    def going_on(self, owners: Mapping[Client, str], nodes: Mapping[int, Client]) -> Identity:
        """This, with what was known when the server was stopped. A run of an earlier Coterie tells node ids alone."""
        known = dict(owners) or ({client: f"node {node}" for node, client in nodes.items()} if self.rule == FIRST else {})
        return Identity(self.rule, {**known, **self.owners} if self.rule != LISTED else dict(self.owners))

    def owned(self, its: Iterable[str]) -> Client | None:
        """The client that belongs to the node with these badges."""
        its = set(its)
        return next((client for client, badge in self.owners.items() if badge in its), None)

    def judge(self, node: int, its: tuple[str, ...], claim: Client | None) -> Client | None:
        """The client that a node is; None if it may be any that is free. Raises :class:`Refused`.

        Args:
            node: its id, for the sentence.
            its: what it is known by, see :func:`badges`.
            claim: the client that it says it is, if it says so.
        """
        if self.rule == CLAIMED:
            return claim
        own = self.owned(its)
        if own is None and self.rule == LISTED:
            why = "is in no line of the list of clients"
        elif own is not None and claim not in (None, own):
            why = f"belongs to client {own}"
        elif own is None and claim in self.owners:
            badge = self.owners[claim]
            why = f"client {claim} is {badge if badge.startswith('node ') else f'the node with key {badge}'}"
        else:
            return claim if own is None else own
        who = f"node {node}" + (f" with key {its[0]}" if len(its) > 1 else "")
        says = "" if claim is None else f" says that it is client {claim}, and"
        raise Refused(f"{who}{says} {why}; it takes no part")

    def bind(self, client: Client, its: tuple[str, ...]) -> None:
        """A node is a client now: under ``first``, for good."""
        if self.rule == FIRST:
            self.owners[client] = its[0]
