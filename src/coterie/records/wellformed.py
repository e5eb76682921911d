"""Checks that records have the form on which readers rely: a file may be damaged or come from a hostile person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, get_args

from coterie.boundary import Boundary
from coterie.core import LONGEST_NAME, Criterion, Effect, Sign, Training
from coterie.data import target_scale
from coterie.methods import METHODS
from coterie.pooling import sound
from coterie.printable import printable
from coterie.robust import Robust
from coterie.settings import UserError, build, fits

Test = Callable[[Any], bool]

_CRITERION = {field.name for field in fields(Criterion)} | {"held"}


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0 and fits(value)


def _number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        return False
    return not isinstance(value, int) or fits(value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _list(inner: Test) -> Test:
    return lambda value: isinstance(value, list) and all(inner(one) for one in value)


def _table(inner: Test, key: Test = _text) -> Test:
    return lambda value: (
        isinstance(value, Mapping) and all(key(name) and inner(one) for name, one in value.items())
    )


def _id(value: Any) -> bool:
    """A client's id as a key of JSON."""
    return isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 19


def _client(value: Any) -> bool:
    known = (
        isinstance(value, Mapping)
        and _whole(value.get("group"))
        and isinstance(value.get("adversary", True), bool)
    )
    return known and all(_number(one) for name, one in value.items() if name != "adversary")


def _criterion(value: Any) -> bool:
    if not isinstance(value, Mapping) or set(value) != _CRITERION:
        return False
    texts = all(_text(value[name]) for name in ("name", "key", "setting", "met", "unmet"))
    known = value["sign"] in get_args(Sign) and isinstance(value["held"], bool)
    return texts and known and _number(value["value"]) and _number(value["bound"])


def _named(value: Any) -> bool:
    return isinstance(value, Mapping) and _text(value.get("name"))


def _mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _net(value: Any) -> bool:
    return isinstance(value, Mapping) and _text(value.get("others", ""))


def _names(value: Any) -> bool:
    return (
        _list(_text)(value)
        and len(set(value)) == len(value)
        and all(0 < len(name) <= LONGEST_NAME for name in value)
    )


_ids = _list(_whole)
_groups = _list(_ids)


def _drift(value: Any) -> bool:
    """The period of a drift, and a row of concepts for each time step, all of one length."""
    if not isinstance(value, Mapping) or not (_whole(value.get("period")) and value["period"] > 0):
        return False
    rows = value.get("concepts", [])
    return _groups(rows) and len({len(row) for row in rows}) == 1


def _constant(value: Any) -> bool:
    """What a constant prediction is, and what it scores for each client."""
    if not isinstance(value, Mapping) or not _text(value.get("predicts")):
        return False
    scores = all(_list(_number)(value.get(name)) for name in ("values", "own"))
    return scores and _list(lambda each: each == {} or sound(each))(value.get("sums", []))


NOTE: Mapping[str, Test] = {
    "kind": _text,
    "effect": lambda value: value in get_args(Effect),
    "clients": _ids,
    "parts": _groups,
    "text": _text,
    "criteria": _list(_criterion),
    "otherwise": _text,
    "numbers": _table(_number),
    "labels": _table(_whole),
    "values": _table(_table(_number, _id)),
    "similarity": lambda value: value is None or _text(value),
}
_ALWAYS: Mapping[str, Test] = {
    "round": _whole,
    "exchange": _whole,
    "exchanges": _whole,
    "tested": lambda value: isinstance(value, bool),
    "groups": _groups,
    "clients": _table(_client, _id),
    "notes": _list(lambda note: isinstance(note, Mapping) and not _flaw(note, NOTE, tuple(NOTE))),
    "asked": _whole,
    "answered": _whole,
    "refused": _table(_text, _id),
    "silent": _ids,
    "bytes_up": _whole,
    "bytes_down": _whole,
    "evaluations": _whole,
    "seconds": _table(_number),
}
_SOMETIMES: Mapping[str, Test] = {
    "released": _table(_whole, _id),
    "files": _table(_text),
    "claimed": _table(_whole, _id),
    "counted": _table(_whole, _id),
    "scaled": _table(_number, _id),
    "sums": _table(_table(sound), _id),
}
"""Entries of the lines to which they apply."""
LINE = {**_ALWAYS, **_SOMETIMES}
REQUIRED = tuple(_ALWAYS)

WORLD: Mapping[str, Test] = {
    "clients": _ids,
    "names": _names,
    "metric": lambda value: (
        isinstance(value, Mapping)
        and set(value) == {"main", "better"}
        and all(map(_text, value.values()))
    ),
    "examples": _ids,
    "tests": _ids,
    "test_subjects": _ids,
    "data": _text,
    "combine": _text,
    "target_scale": target_scale.sound,
    "true_groups": _groups,
    "drift": _drift,
    "adversaries": _ids,
    "model": _named,
    "net": _net,
    "constant": _constant,
    "testers": _list(_number),
    "cautions": _list(_text),
}
DESCRIPTION: Mapping[str, Test] = {
    "methods": lambda value: isinstance(value, list) and len(value) == 1 and _named(value[0]),
    "scenario": _named,
    "seeds": lambda value: _ids(value) and len(value) == 1,
    "rounds": _whole,
    "eval_every": _whole,
    "checkpoint_every": _whole,
    "checkpoints_kept": _whole,
    "target": _number,
    "training": _mapping,
    "boundary": _mapping,
    "robust": _mapping,
    "world": lambda value: isinstance(value, Mapping) and not _flaw(value, WORLD, ("clients",)),
    "versions": _table(_text),
    "secret": _text,
}


def _flaw(
    value: Mapping[str, Any], tests: Mapping[str, Test], needed: tuple[str, ...]
) -> str | None:
    for name, test in tests.items():
        if name not in value:
            if name in needed:
                return f"it lacks {name!r}"
        elif not test(value[name]):
            return f"{name!r} has the wrong type"
    return None


def flaw_of_line(line: Any, whole: bool = True) -> str | None:
    """The reason why a value is not a line of the records.

    Args:
        line: The value.
        whole: Whether all required entries must be present.

    Returns:
        The reason, or None if the value is a line.
    """
    if not isinstance(line, Mapping):
        return "it is not an object"
    return _flaw(line, LINE, REQUIRED if whole else ()) or (
        _flaw_of_groups(line) if whole else None
    )


def _flaw_of_groups(line: Mapping[str, Any]) -> str | None:
    """The reason if not every client is in one group and has this group's number in its entry, or None."""
    there = {str(client): number for number, group in enumerate(line["groups"]) for client in group}
    if len(there) != sum(map(len, line["groups"])):
        return "'groups' has a client in two groups"
    given = {client: entry["group"] for client, entry in line["clients"].items()}
    return None if given == there else "'clients' do not match 'groups'"


def flaw_of_nodes(document: Any) -> str | None:
    """The reason why a value is not the content of a ``nodes.json`` with names that differ when shown, or None."""
    if not isinstance(document, Mapping) or not _table(_text, _id)(document.get("names", {})):
        return "'names' has the wrong type"
    shown = [printable(name) for name in document.get("names", {}).values()]
    if not _names(shown) or any(name.isdecimal() for name in shown):
        return "'names' has a name twice, or one that is empty, too long or a number"
    return None


def flaw_of_description(document: Mapping[str, Any]) -> str | None:
    """The reason why a document is not a ``run.toml``, or None."""
    return _flaw(document, DESCRIPTION, ("world", "versions")) or _flaw_of_settings(document)


def _flaw_of_settings(document: Mapping[str, Any]) -> str | None:
    """The reason if a setting would not be accepted now, or None.

    Only known settings are checked, since a federation may have a custom method. The secret is not
    in the document, so it is not checked.
    """
    method = document["methods"][0]
    tables = [(cls, document[cls.__name__.lower()]) for cls in (Training, Boundary, Robust)]
    if (cls := METHODS.get(method["name"])) is not None:
        tables.append((cls, method))
    for cls, table in tables:
        names = {field.name for field in fields(cls) if field.init} - {"secret"}
        try:
            build(cls, {name: table[name] for name in names if name in table})
        except (UserError, TypeError, ValueError) as error:
            return str(error)
    return None
