"""A boundary's secret: it is given anew whenever it is needed, and a record has what it is known by and nothing else.

That is a slow, salted digest: it tells whether a secret is the same, and trying out many takes long. A secret of few digits can
be tried out all the same.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path

from coterie.files import read_regular, reason
from coterie.settings import UserError

VARIABLE = "COTERIE_SECRET"
"""Environment variable that has the secret."""

_KIND = "scrypt"
_HOW = f"set {VARIABLE}, or give --secret-file FILE, or secret= in Python"


def known_by(secret: int) -> str:
    """What a record keeps of a secret: ``scrypt``, a salt of its own, and the digest."""
    salt = secrets.token_bytes(16)
    return f"{_KIND}:{salt.hex()}:{_digest(secret, salt).hex()}"


def unlike_secret(secret: int | None, known: str) -> str | None:
    """Why a secret is not the one that is ``known``, as the end of a sentence; None if it is."""
    if secret is None:
        return f", which was not given: {_HOW}"
    try:
        kind, salt, digest = known.split(":")
        same = kind == _KIND and hmac.compare_digest(_digest(secret, bytes.fromhex(salt)), bytes.fromhex(digest))
    except ValueError:
        same = False
    return None if same else f", and another one was given: {_HOW}"


def secret_of_environment() -> int | None:
    """The environment's secret, if it has one."""
    text = os.environ.get(VARIABLE)
    return None if text is None else _number(text, f"the environment variable {VARIABLE}")


def secret_of_file(path: Path | str) -> int:
    """The secret in a file, which has nothing else. Raises :class:`~coterie.settings.UserError` if it is no number."""
    try:
        data = read_regular(path, limit=10_000)
    except OSError as error:
        if re.fullmatch(r"[\d\s_,.+-]+", str(path)):
            raise UserError("the secret's file cannot be read; its name, a number, is not shown: is it the secret?") from None
        raise UserError(f"{path} cannot be read: {reason(error)}") from error
    return _number(data.decode("utf-8-sig", errors="replace"), str(path))


def _number(text: str, where: str) -> int:
    if not (text.strip().isascii() and text.strip().isdecimal() and len(text.strip()) <= 1000):
        raise UserError(f"{where} must have a secret, a whole number >= 0, and nothing else; what it has is not shown")
    return int(text)


def _digest(secret: int, salt: bytes) -> bytes:
    return hashlib.scrypt(str(secret).encode(), salt=salt, n=2**14, r=8, p=1, maxmem=2**26)
