"""Names that look alike, such as "a" and "a ": they would count as two clients, columns or classes, and a reader sees one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from coterie.settings import SettingError

_WHOLE_FRACTION = re.compile(r"-?[0-9]+\.0+")
"""A whole number that is written as a fraction, as where another value was missing."""


def name_of(key: Any) -> str:
    """Return the text of a name; whole numbers that became floats, where one was missing, are whole numbers again.

    Example:
        >>> name_of("ward"), name_of(7), name_of(7.0), name_of(7.5)
        ('ward', '7', '7', '7.5')
    """
    return str(int(key)) if isinstance(key, float) and key.is_integer() else str(key)


def likeness(name: Any) -> str:
    """Return what a reader sees of a name: its text in Unicode's form NFC, without spaces around it and invisible characters.

    A whole number that is written as a fraction is the whole number.

    Example:
        >>> likeness("ward  7 "), likeness("7.0"), likeness("cafe\u0301") == likeness("caf\u00e9"), likeness("A")
        ('ward 7', '7', True, 'A')
    """
    text = name_of(name)
    if not text.isascii():
        # NFC has one coding for each accent. Cf are characters of format, which nobody sees.
        composed = unicodedata.normalize("NFC", text)
        text = "".join(letter for letter in composed if unicodedata.category(letter) != "Cf")
    text = " ".join(text.split())
    return text.partition(".")[0] if _WHOLE_FRACTION.fullmatch(text) else text


def check_unlike(names: Iterable[Any], noun: str) -> None:
    """Check that different names do not look alike, such as "a" and "a ", 1 and "1", or two codings of one accent.

    Args:
        names: Names, all of them different.
        noun: What has the names, in the plural, for the message.

    Raises:
        SettingError: Two names have the same :func:`likeness`.
    """
    name_of_look: dict[str, Any] = {}
    for name in names:
        look = likeness(name)
        if look in name_of_look:
            raise SettingError(
                f"two {noun} have names that look alike, {both(name_of_look[look], name)}: give both one spelling"
            )
        name_of_look[look] = name


def both(name: Any, other_name: Any) -> str:
    """Return two names, so that a reader sees how they differ."""
    shown_names = [repr(name), repr(other_name)]
    # Two codings of one accent look the same, so they are shown as codes.
    composed_names = {unicodedata.normalize("NFC", shown_name) for shown_name in shown_names}
    if len(composed_names) == 1:
        shown_names = [ascii(name), ascii(other_name)]
    return " and ".join(shown_names)


def client_called(name: str) -> str:
    """A client's name in a sentence; clients without names are called by their numbers."""
    return name if name.startswith("client ") else f"client {name}"
