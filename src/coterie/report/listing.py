"""Lists of what a user can choose: names with a sentence, and settings with values and limits, as rich tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.table import Table
from rich.text import Text

from coterie.settings import SYMBOLS, documented


def names(about: Mapping[str, str]) -> Table:
    """Return a table with one row per name and its sentence."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, text in about.items():
        table.add_row(Text(name, style="bold"), Text(text))
    return table


def settings(
    source: Any, hidden: Sequence[str] = (), called: Mapping[str, str] = MappingProxyType({})
) -> Table:
    """Return a table with one row per setting: its value, the allowed values, and its meaning.

    Args:
        source: An instance, whose values are shown, or a class, whose defaults are shown.
        hidden: Settings to leave out.
        called: Name of a setting -> the name that is shown in its place.
    """
    # Limits are those of the dataclass's fields.
    cls = source if isinstance(source, type) else type(source)
    limits = {field.name: field.metadata.get("limits", {}) for field in dataclasses.fields(cls)}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("setting", "value", "allowed", ""):
        table.add_column(heading, overflow="fold")
    for name, type_in_words, _, about in documented(cls):
        if name in hidden:
            continue
        table.add_row(
            Text(called.get(name, name), style="bold"),
            Text(plain(getattr(source, name))),
            Text(allowed(type_in_words, limits[name])),
            Text(about),
        )
    return table


def allowed(type_in_words: str, limits: Mapping[str, Any]) -> str:
    """Return a setting's type and limits in words.

    Example:
        >>> allowed("a number", {"ge": 0, "lt": 1}), allowed("a string", {"choices": ("l1", "l2")})
        ('a number >= 0, < 1', 'l1, l2')
    """
    if "choices" in limits:
        return ", ".join(limits["choices"])
    bounds = ", ".join(f"{SYMBOLS[key]} {bound:g}" for key, bound in limits.items())
    return f"{type_in_words} {bounds}" if bounds else type_in_words


def plain(value: Any) -> str:
    """Return a value in the form that a TOML file or --set accepts.

    Example:
        >>> plain(None), plain(True), plain(((1, 7),))
        ('none', 'true', '[[1, 7]]')
    """
    if isinstance(value, tuple):
        return f"[{', '.join(plain(element) for element in value)}]"
    # TOML has booleans in lower case.
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def assignments(settings: Mapping[str, Any]) -> str:
    """Return settings as --set takes them.

    Example:
        >>> assignments({"eps1": 0.4, "groups": None})
        'eps1=0.4 groups=none'
    """
    return " ".join(f"{name}={plain(value)}" for name, value in settings.items())


def first_line(cls: type[Any]) -> str:
    """Return the first line of a class's docstring."""
    return (cls.__doc__ or "").strip().partition("\n")[0]
