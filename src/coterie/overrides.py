"""``--set key=value``: which setting a name means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from coterie.boundary import Boundary
from coterie.core import Training
from coterie.experiment import PLAIN, Spec
from coterie.methods import METHODS, method_class
from coterie.robust import Robust
from coterie.scenario import find
from coterie.settings import SettingError, nearest, parse, settings_of

_KEY = re.compile(r"[\w.-]+")

DOTTED = ("boundary", "robust")
"""Tables whose settings are named with the table."""


class Place(NamedTuple):
    """Where a setting is: ``kind`` of table, the ``table``'s own name, the ``key``, the ``values`` to write into."""

    kind: str
    table: str
    key: str
    values: dict[str, Any]

    @property
    def dotted(self) -> str:
        return f"{self.table}.{self.key}"


def assign(spec: Spec, text: str) -> Spec:
    """``spec`` with the setting of ``text``, ``key=value``, changed.

    key: ``method.KEY`` (of each method that has it), ``NAME.KEY`` of one method, ``training.KEY``, ``scenario.KEY``,
    ``experiment.KEY``, ``boundary.KEY``, ``robust.KEY``; or a bare KEY where only one kind of the first four has it. Raises
    :class:`~coterie.settings.SettingError` for an unknown key, naming the nearest, and for an ambiguous one.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not _KEY.fullmatch(key):
        got = "; what was given is not shown: it may be a secret" if "secret" in text.lower() else f", got {text!r}"
        raise SettingError(f"--set takes key=value{got}")
    spec = {
        **spec,
        "scenario": dict(spec["scenario"]),
        "training": dict(spec["training"]),
        "boundary": dict(spec["boundary"]),
        "robust": dict(spec["robust"]),
        "methods": [dict(m) for m in spec["methods"]],
    }
    try:
        parsed = parse(value)
    except ValueError as error:
        if key.rpartition(".")[2] == "secret" and value.isdecimal():
            raise SettingError(f"--set {key}: a secret of more than 64 bits is given by --secret-file FILE") from None
        raise SettingError(f"--set {key}: the value cannot be read: {error}") from error
    if parsed is None:  # a text may be called "none" (a shift), and an optional setting takes "none" for None
        parsed = "none"
    places = list(_places(spec))
    for place in _dotted(places, key) if "." in key else _bare(places, key):
        place.values[place.key] = parsed
    return spec


def _places(spec: Spec) -> Iterator[Place]:
    for table in spec["methods"]:
        for key in settings_of(method_class(table["name"])):
            yield Place("method", table["name"], key, table)
    for key in settings_of(Training):
        yield Place("training", "training", key, spec["training"])
    for key in settings_of(Boundary):
        yield Place("boundary", "boundary", key, spec["boundary"])
    for key in settings_of(Robust):
        yield Place("robust", "robust", key, spec["robust"])
    for key in settings_of(type(find(spec["scenario"]["name"])), hidden=("training",)):
        yield Place("scenario", "scenario", key, spec["scenario"])
    for key in (*PLAIN, "seeds"):
        yield Place("experiment", "experiment", key, spec)


def _dotted(places: list[Place], key: str) -> list[Place]:
    table, _, name = key.rpartition(".")
    there = [place for place in places if table in (place.table, place.kind)]
    if not there:
        tables = dict.fromkeys([*(p.table for p in places), "method"])
        if table in METHODS:
            raise SettingError(f"--set {key}: {table} is not among the methods of this run")
        raise SettingError(f"--set {key}: there is no {table!r}{nearest(table, tables)} (known: {', '.join(tables)})")
    found = [place for place in there if place.key == name]
    if not found:
        known = dict.fromkeys(place.key for place in there)
        hint = f"{nearest(name, known)} (known: {', '.join(known)})"
        raise SettingError(f"--set {key}: {table} has no setting {name!r}{hint}")
    return found


def _bare(places: list[Place], key: str) -> list[Place]:
    found = [place for place in places if place.key == key and place.kind not in DOTTED]
    if not found:
        if table := next((place.table for place in places if place.key == key), None):
            raise SettingError(f"--set {key}: write {table}.{key}")
        hint = nearest(key, {place.key for place in places})
        if not hint:
            hint = "; coterie methods NAME and coterie scenarios NAME list them"
        raise SettingError(f"--set {key}: no method of this run, training or scenario has a setting {key!r}{hint}")
    if len({place.kind for place in found}) > 1:
        names = " or ".join(dict.fromkeys(place.dotted for place in found))
        raise SettingError(f"--set {key} is ambiguous: write {names}")
    return found
