"""Methods by name. The list itself is in :mod:`coterie.methods`; methods that are made of others look them up here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from coterie.core import Method
from coterie.settings import SettingError, UserError, build, nearest

KNOWN: dict[str, type[Any]] = {}
"""Name -> class; :mod:`coterie.methods` fills it."""


def method_class(name: str, own: Mapping[str, type[Any]] = MappingProxyType({})) -> type[Any]:
    """Return the class of the method called ``name``.

    Args:
        name: a method's name.
        own: name -> class of a user's own methods.

    Raises:
        UserError: there is no such method; the message suggests the nearest known name.
    """
    if name in own:
        return own[name]
    if name not in KNOWN:
        raise UserError(f"there is no method {name!r}{nearest(name, KNOWN)} (known: {', '.join(KNOWN)})")
    return KNOWN[name]


def made(given: Any) -> Any:
    """Return a method from its name, from a table of its name and settings, or as it is.

    Args:
        given: The name, the table or the method.

    Raises:
        UserError: There is no such method, or a setting is not allowed.

    Example:
        >>> made({"name": "ifca", "models": 3}).models
        3
    """
    if isinstance(given, str):
        return method_class(given)()
    if isinstance(given, Mapping):
        settings = dict(given)
        if "name" not in settings:
            raise SettingError(f"a method's table needs a name, one of {', '.join(KNOWN)}, got {given!r:.60}")
        return build(method_class(str(settings.pop("name"))), settings)
    if isinstance(given, type):
        raise SettingError(f"a method is an object with its settings, got the class {given.__name__}: write {given.__name__}()")
    if type(given) in KNOWN.values() or isinstance(given, Method):
        return given
    raise SettingError(f"a method is a name, a table with a name, or an object with the five functions, got {given!r:.60}")
