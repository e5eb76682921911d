"""Settings are the fields of a frozen dataclass, each with a sentence and its limits; nothing else describes them.

TOML files, ``--set``, help texts, records and equality all read these fields.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from typing import Any

from coterie.printable import one_line


class UserError(Exception):
    """A mistake of the caller's, told in one sentence: the setting, its value, what is allowed, the likely slip.

    What it quotes may be from a stranger: as a text it is one line without control characters, cut in the middle
    where it is too long to read.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


class SettingError(UserError, ValueError):
    """A setting whose value is not allowed, or a name that is no setting."""


def setting(
    default: Any,
    doc: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: Iterable[str] | None = None,
    multiple: int | None = None,
    bits: int = 64,
) -> Any:
    """A dataclass field with its sentence ``doc`` and its limits.

    The limits: >=, >, <=, <, one of ``choices``, a positive multiple; the ``bits`` of a whole number: TOML's have 64.
    """
    limits = {"ge": ge, "gt": gt, "le": le, "lt": lt, "choices": None if choices is None else tuple(choices)}
    limits["multiple"] = multiple
    metadata = {"doc": doc, "limits": {k: v for k, v in limits.items() if v is not None}, "bits": bits}
    if isinstance(default, (dict, list)):
        raise TypeError("a setting's default is immutable")
    return dataclasses.field(default=default, metadata=metadata)


def check(settings: Any) -> None:
    """Hold every field to its type and limits; call it in ``__post_init__``. Raises :class:`SettingError`."""
    hints = typing.get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        if "limits" not in field.metadata:
            continue
        name = f"{type(settings).__name__}.{field.name}"
        value = _coerce(name, getattr(settings, field.name), hints[field.name], field.metadata["bits"])
        object.__setattr__(settings, field.name, value)
        for single in value if isinstance(value, tuple) else (value,):
            _check_limits(name, single, field.metadata["limits"])


MOST_SEEDS = 10_000
"""Seeds from 0 on that a number can ask for."""


def _is_text(value: str) -> bool:
    """Whether a file can hold it, and the system take it for a path: bytes of a name that are no UTF-8 are half a pair."""
    return not any(letter < " " or "\ud800" <= letter <= "\udfff" for letter in value)


SYMBOLS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "multiple": "a positive multiple of"}


def _check_limits(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    if value is None:
        return
    if "choices" in limits:
        if value not in limits["choices"]:
            raise SettingError(
                f"{name} must be one of {', '.join(limits['choices'])}, got {value!r}{nearest(value, limits['choices'])}"
            )
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    tests = {
        "ge": lambda b: value >= b, "gt": lambda b: value > b, "le": lambda b: value <= b, "lt": lambda b: value < b,
        "multiple": lambda b: value > 0 and value % b == 0,
    }  # fmt: skip
    if math.isnan(value) or any(not tests[k](bound) for k, bound in limits.items()):
        allowed = " and ".join(f"{SYMBOLS[k]} {bound:g}" for k, bound in limits.items()) or "a number"
        raise SettingError(f"{name} must be {allowed}, got {value!r}")


def _coerce(name: str, value: Any, hint: Any, bits: int) -> Any:
    """``value`` as the annotated type: ints pass as floats, NumPy's numbers as Python's, lists as tuples, nothing else."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union else (hint,)
    for option in sorted(options, key=lambda o: o is not type(None)):
        origin = typing.get_origin(option) or option
        if option is type(None) and value in (None, "none"):
            return None
        if origin in (float, int) and isinstance(value, numbers.Integral) and not fits(int(value), bits):
            raise SettingError(f"{name} must be below 2^{bits - 1}, got a number of {int(value).bit_length():,} bits")
        if origin is float and isinstance(value, numbers.Real) and value is not True and value is not False:
            return float(value)
        if origin is int and isinstance(value, numbers.Integral) and value is not True and value is not False:
            return int(value)
        if origin is tuple and isinstance(value, (list, tuple)):
            inner = typing.get_args(option)[0]
            return tuple(_coerce(f"{name}[{i}]", v, inner, bits) for i, v in enumerate(value))
        if origin is str and isinstance(value, str) and not _is_text(value):
            raise SettingError(f"{name} must be a text in UTF-8 without control characters, got {value!r}")
        if origin in (bool, str) and isinstance(value, origin):
            return value
        if isinstance(origin, type) and origin not in (float, int, bool, str) and isinstance(value, origin):
            return value
    raise SettingError(f"{name} must be {describe(hint)}, got {value!r}")


def fits(number: int, bits: int = 64) -> bool:
    """Whether a whole number has at most so many bits, its sign among them; TOML's have 64."""
    return -(1 << bits - 1) <= number < 1 << bits - 1


def describe(hint: Any) -> str:
    """A field's type in words, for messages and help.

    >>> describe(int | None)
    'a whole number or none'
    """
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " or ".join(describe(h) for h in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return f"a list ({describe(typing.get_args(hint)[0])} each)"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def nearest(name: Any, known: Iterable[str]) -> str:
    """``"; did you mean X?"`` for the closest known name, or an empty text."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


DEEPEST = 16
"""Tables and lists inside one another, in TOML."""

_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*+(?:{_PART}[ \t]*+\.[ \t]*+){{{4 * DEEPEST}}}", re.MULTILINE)
"""A key of too many parts, where one can begin, before it is parsed: of 80,000, the parser takes minutes and all memory."""


def toml(text: str) -> dict[str, Any]:
    """The document in TOML text; raises ``ValueError`` that says in a few words why it is none, whoever wrote it.

    >>> toml("a = [1, {b = 2}]")
    {'a': [1, {'b': 2}]}
    """
    import tomllib

    too_deep = f"its tables and lists are more than {DEEPEST} deep"
    if _DEEP_KEY.search(text):
        raise ValueError(too_deep)
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(too_deep) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # of Python's own: more digits than it reads
        raise ValueError(f"it has a number of too many digits ({error})") from None
    for value in _within(document, too_deep):
        if isinstance(value, date | time):
            raise ValueError("it has a date or a time, which no setting is")
        if isinstance(value, int) and not fits(value):
            table = document.get("boundary")
            if isinstance(table, dict) and table.get("secret") is value:
                raise ValueError("its boundary.secret has more than 64 bits; a longer secret is given by --secret-file FILE")
            raise ValueError("it has a whole number of more than 64 bits")
    return document


def _within(document: Any, too_deep: str) -> Iterator[Any]:
    """All values in tables and lists, however deep; raises ``ValueError`` beyond :data:`DEEPEST`."""
    level = [document]
    for _ in range(DEEPEST):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        ]
        yield from level
        if not level:
            return
    raise ValueError(too_deep)


def parse(text: str) -> Any:
    """A value typed on the command line: TOML's notation, ``none``, or else the text itself.

    Raises ``ValueError`` for what Coterie reads nowhere: see :func:`toml`.

    >>> parse("0.5"), parse("[1, 2]"), parse("true"), parse("none"), parse("ward")
    (0.5, [1, 2], True, None, 'ward')
    """
    import tomllib

    if text.lower() == "none":
        return None
    try:
        return toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def build(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """``cls(**values)``, tables of nested settings included; an unknown name is refused with the nearest known one."""
    known = [f.name for f in dataclasses.fields(cls) if f.init]
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in known:
            raise SettingError(f"{cls.__name__} has no setting {name!r}{nearest(name, known)} (known: {', '.join(known)})")
    nested = {k: v for k, v in values.items() if isinstance(v, Mapping) and dataclasses.is_dataclass(hints[k])}
    return cls(**{**values, **{k: build(hints[k], v) for k, v in nested.items()}})


def as_dict(settings: Any) -> dict[str, Any]:
    """The fields by name, tuples as lists, ready for TOML or JSON; a ``None`` is left out, or ``"none"`` if no default."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is None:
            if field.default is None:
                continue
            value = "none"
        out[field.name] = as_dict(value) if dataclasses.is_dataclass(value) else _lists(value)
    return out


def _lists(value: Any) -> Any:
    return [_lists(v) for v in value] if isinstance(value, tuple) else value


def documented(cls: type[Any]) -> list[tuple[str, str, Any, str]]:
    """(name, type in words, default, sentence) of every setting of ``cls``, in order."""
    hints = typing.get_type_hints(cls)
    return [
        (f.name, describe(hints[f.name]), f.default, f.metadata["doc"]) for f in dataclasses.fields(cls) if "doc" in f.metadata
    ]


def settings_of(cls: type[Any], hidden: Sequence[str] = ()) -> list[str]:
    """The names of the settings of ``cls``."""
    return [f.name for f in dataclasses.fields(cls) if f.init and f.name not in hidden]


def changed(base: Any, values: Mapping[str, Any], table: str, hidden: Sequence[str] = ()) -> Any:
    """``base`` with other ``values``; raises :class:`~coterie.settings.SettingError` for a name that is no setting of it."""
    known = settings_of(type(base), hidden)
    for key in values:
        if key not in known:
            hint = f"; it has a table of its own, [{key}]" if key in hidden else nearest(key, known)
            raise SettingError(f"{table} has no setting {key!r}{hint} (known: {', '.join(known)})")
    return dataclasses.replace(base, **values)


def plain(settings: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    """All fields for TOML: None is written as ``"none"``, so that nothing depends on what defaults come to be."""
    return {name: _value(getattr(settings, name)) for name in settings_of(type(settings), without)}


def _value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_value(v) for v in value]
    return "none" if value is None else value
