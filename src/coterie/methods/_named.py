"""Methods by name. The list itself is in :mod:`coterie.methods`; methods that are made of others look them up here.

A method has a name of the list, or is a class of the user's: ``package.module:Class``. A record has
both names of such a method, so that it can be told from the others and found again::

    [[methods]]
    name = "damped"                # the class's own name, which reports and folders have
    class = "mymethod:Damped"      # where the class is
    damping = 0.7
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from coterie.core import Method
from coterie.extensions import Registry, imported
from coterie.methods._presets import PRESET, built
from coterie.settings import SettingError, UnknownName, UserError, known_list, plain
from coterie.settings.calls import public
from coterie.settings.field_names import edits, spelled

METHODS: Registry[type[Any]] = Registry(
    "coterie.methods",
    "a method's class",
    accepts=lambda name, cls: isinstance(cls, type) and getattr(cls, "name", None) == name,
    prepared=public,
    unknown=lambda name: _unknown_method(name),
)
"""Name -> class; :mod:`coterie.methods` fills in Coterie's own."""


def method_class(
    name: str, user_methods: Mapping[str, type[Any]] = MappingProxyType({})
) -> type[Any]:
    """Return the class of the method called ``name``.

    Args:
        name: a method's name, or ``package.module:Class`` of the user's own, which is imported.
        user_methods: name -> class of a user's own methods.

    Raises:
        UserError: there is no such method; the message suggests the nearest known name. Or it is an
            extension's or the user's, and cannot be imported, or is no method.
    """
    # The user's own methods come first.
    if name in user_methods:
        return user_methods[name]
    if ":" in name:
        return _own_class(name)
    try:
        return METHODS.find(name)
    except KeyError:
        raise _unknown_method(name, user_methods) from None


CLASS = "class"
"""The entry of a method's table that says where the class of a user's own method is. No setting can
have this name, because Python has it."""

METHOD_FUNCTIONS = ("init", "plan", "step", "assignment", "explain")
"""The five functions of a method."""

_NAME_PATTERN = re.compile(r"[A-Za-z0-9][\w-]*")
"""What a method may be called: folders of runs have its name."""

_CODE_PATTERN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""What may be the place of a class: ``package.module:Class``."""


def _own_class(place: str) -> type[Any]:
    """The class of a user's own method at ``package.module:Class``, after a check that it is a method."""
    cls = imported(place, "method")
    # 1. A class with the five functions and settings.
    if not isinstance(cls, type):
        raise UserError(f"the method {place!r} must be a class, and is {cls!r:.60}")
    missing = [
        function for function in METHOD_FUNCTIONS if not callable(getattr(cls, function, None))
    ]
    if missing:
        raise UserError(
            f"the class {place!r} is not a method: it lacks {', '.join(missing)} "
            f"(a method has {', '.join(METHOD_FUNCTIONS)})"
        )
    if not dataclasses.is_dataclass(cls):
        raise UserError(
            f"the method {place!r} must be a dataclass, whose fields are its settings: "
            "write @dataclass(frozen=True, kw_only=True) above the class"
        )
    # 2. A name of its own. A subclass of one of Coterie's methods has that one's unless it says so.
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not _NAME_PATTERN.fullmatch(name):
        raise UserError(
            f"the method {place!r} must have a name of letters, digits and hyphens, such as "
            f'name: ClassVar[str] = "my-method", got {name!r:.60}'
        )
    if name in METHODS and METHODS[name] is not cls:
        raise UserError(
            f"the method {place!r} has the name {name!r}, which another method has already: "
            f'give it one of its own, such as name: ClassVar[str] = "my-{name}"'
        )
    own_class: type[Any] = public(cls)
    return own_class


def place_of(cls: type[Any]) -> str:
    """Return ``package.module:Class`` of a user's own method.

    Args:
        cls: The class of a method.

    Returns:
        The place; empty for a method of :data:`METHODS`, and for a class that cannot be imported,
        such as one of a script or inside a function.
    """
    if cls.name in METHODS and METHODS[cls.name] is cls:
        return ""
    module = sys.modules.get(cls.__module__)
    if cls.__module__ == "__main__" or getattr(module, cls.__qualname__, None) is not cls:
        return ""
    return f"{cls.__module__}:{cls.__qualname__}"


def method_table(method: Any) -> dict[str, Any]:
    """Return a method as a table of its name, its place if it is the user's own, and its settings.

    Args:
        method: The method.

    Example:
        >>> method_table(method_class("ifca")(models=3))["name"]
        'ifca'
    """
    table = {"name": method.name}
    if place := place_of(type(method)):
        table[CLASS] = place
    table |= plain(method)
    # A setting may be a method itself.
    for field in dataclasses.fields(method):
        if field.name in table and isinstance(getattr(method, field.name), Method):
            table[field.name] = method_table(getattr(method, field.name))
    return table


def class_of_table(
    table: Mapping[str, Any], user_methods: Mapping[str, type[Any]] = MappingProxyType({})
) -> type[Any]:
    """Return the class of the method that a table describes.

    Args:
        table: The table, with its ``name``, or with ``class`` as well.
        user_methods: name -> class of a user's own methods, which are not imported.

    Raises:
        UserError: see :func:`method_class`; or the class at that place has another name.
    """
    name = str(table["name"])
    place = table.get(CLASS)
    if place is None or name in user_methods:
        return method_class(name, user_methods)
    if not isinstance(place, str) or ":" not in place:
        raise SettingError(
            f"{name}.{CLASS} must be the place of a class, package.module:Class, got {place!r:.60}"
        )
    own_class = method_class(place)
    if own_class.name != name:
        raise UserError(f"the method {place!r} has the name {own_class.name!r}, and not {name!r}")
    return own_class


def made_of_table(
    table: Mapping[str, Any], user_methods: Mapping[str, type[Any]] = MappingProxyType({})
) -> Any:
    """Return the method that a table describes.

    Args:
        table: Its name, its place if it is the user's own, and its settings.
        user_methods: name -> class of a user's own methods, which may also be settings of others.

    Raises:
        UserError: There is no such method, or a setting is not allowed.
    """
    settings = without_class(table)
    # A method that is a setting of this one, and whose class the caller has given.
    for setting_name, value in settings.items():
        if isinstance(value, Mapping) and value.get("name") in user_methods:
            settings[setting_name] = made_of_table(value, user_methods)
    return built(class_of_table(table, user_methods), settings)


def without_class(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a method's table: without its name and its place."""
    return {key: value for key, value in table.items() if key not in ("name", CLASS)}


def places_in(value: Any) -> Iterator[str]:
    """Yield every text in a table, at any depth, that may be the place of a class."""
    if isinstance(value, str) and _CODE_PATTERN.fullmatch(value):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from places_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from places_in(entry)


def _unknown_method(name: Any, user_methods: Iterable[str] = ()) -> UnknownName:
    """The error for a name that is no method's."""
    advice = _advice(name, [*user_methods, *METHODS])
    return UnknownName(
        f"there is no method {name!r}{advice}{known_list(METHODS, 'coterie methods')}"
    )


_OTHERS = """
    afl bfl ccfl cgpfl clusterfl cfmtl crfl fedacg fedala fedap fedas fedasync fedbe
    fedbuff fedcac fedclust fedcp feddc feddf feddyn fedem fedest fedfomo fedftg fedgen fedgh fedgkt fedgmm fedgroup fedhealth
    fedkd fedlc fedma fedmd fedmeta fedmgda fednh fednova fedntd fedpac fedpara fedpcl fedpd fedphp fedproto fedproxvr
    fedrecon fedrod fedrolex fedrs fedsam fedsim fedsoft fedsplit fedtgp fedtp fedvarp fedweit fesem flame flexcfl flis
    fltrust gpfl heterofl multikrum bulyan ktpfl lg lgfedavg lgfl localsgd mime mimelite mocha moon pacfl perfedavg
    perfedme pfedclub pfedhn pfedla pfedme pflego qfedavg qffl scaffnew slowmo splitfed stocfl tct wecfl
    zeno
"""
OTHER_ALGORITHMS = frozenset(_OTHERS.split())
"""Algorithms of the literature that are not among Coterie's methods, as
:func:`~coterie.settings.field_names.spelled`."""

EQUIVALENTS = {
    "fedavgm": "FedAvgM is fedopt with the setting fedopt.preset = fedavgm",
    "fedadagrad": "FedAdagrad is fedopt with the setting fedopt.preset = fedadagrad",
    "fedadam": "FedAdam is fedopt with the setting fedopt.preset = fedadam",
    "fedyogi": "FedYogi is fedopt with the setting fedopt.preset = fedyogi",
    "fedsgd": "FedSGD is fedavg with the settings training.steps = 1 and training.batch = 0",
    "local": "training without a server is the method independent",
    "localonly": "training without a server is the method independent",
    "standalone": "training without a server is the method independent",
    "trimmedmean": "it is a setting of every method, robust.mean = trimmed-mean",
    "krum": "bounds on single clients are settings of every method, in robust",
    "dpfedavg": "differential privacy is a setting of every method: boundary.clip and boundary.noise",
    "fedavgft": "fine-tuning of FedAvg's model is in the methods fedbabu and tuned",
}
"""What gives the same as an algorithm that is not a method here."""

OWN_METHODS = (
    "a method of your own runs by its place, --method my_module:MyMethod; "
    'see "Write a method" in the documentation'
)


def _advice(name: Any, method_names: Sequence[str]) -> str:
    """What to do about a name that is no method's: a setting that does the same, the right spelling, or an own method.

    Names of algorithms differ by few letters, so one of the literature is not taken for a slip, and
    a slip is at most two letters.
    """
    spelling = spelled(name)
    if spelling in EQUIVALENTS:
        return f"; {EQUIVALENTS[spelling]}"
    # The same letters, such as another case or another hyphen.
    for method_name in method_names:
        if spelled(method_name) == spelling:
            return f"; did you mean {method_name}?"
    if spelling in OTHER_ALGORITHMS:
        return f", which is not included; {OWN_METHODS}"
    # The place of a class, with a dot in place of the colon.
    module, dot, class_name = str(name).rpartition(".")
    if dot and class_name.isidentifier() and all(map(str.isidentifier, module.split("."))):
        return f"; did you mean {module}:{class_name}?"
    # A slip of one letter in a short name, or of two in a longer one.
    slips = {method_name: edits(spelling, spelled(method_name)) for method_name in method_names}
    nearest_name = min(slips, key=slips.__getitem__)
    if slips[nearest_name] <= (1 if len(spelling) < 6 else 2):
        return f"; did you mean {nearest_name}?"
    return f", which is not included; {OWN_METHODS}"


def made(method: Any) -> Any:
    """Return a method from its name, from a table of its name and settings, or as it is.

    Args:
        method: The name, the table or the method.

    Raises:
        UserError: There is no such method, or a setting is not allowed.

    Example:
        >>> made({"name": "ifca", "models": 3}).models
        3
    """
    # A name is a method with its default settings.
    if isinstance(method, str):
        return method_class(method)()
    if isinstance(method, Mapping):
        if "name" not in method:
            raise SettingError(
                f"a method's table needs a name, one of {', '.join(METHODS)}, got {method!r:.60}"
            )
        return made_of_table(method)
    # A class is a likely slip for an object of it.
    if isinstance(method, type):
        raise SettingError(
            f"a method is an object with its settings, got the class {method.__name__}: write {method.__name__}()"
        )
    if isinstance(method, Method):
        return method
    raise SettingError(
        f"a method is a name, a table with a name, or an object with the five functions, got {method!r:.60}"
    )


@public
def preset(method: str, name: str = "paper", **settings: Any) -> Any:
    """Return a method with the settings of a preset, such as those of its paper.

    Args:
        method: The name of the method.
        name: The name of the preset.
        **settings: Settings that count before those of the preset.

    Returns:
        The method.

    Raises:
        UserError: There is no such method, preset or setting, or a value is not allowed.

    Example:
        >>> preset("cfl").eps2, preset("cfl", eps2=1.2).eps2
        (1.6, 1.2)
    """
    return built(method_class(method), {PRESET: name, **settings})
