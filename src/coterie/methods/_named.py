"""Methods by name. The list itself is in :mod:`coterie.methods`; methods that are made of others look them up here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from coterie.core import Method
from coterie.extensions import Registry
from coterie.methods._presets import PRESET, built
from coterie.settings import SettingError, UnknownName, known_list
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
        name: a method's name.
        user_methods: name -> class of a user's own methods.

    Raises:
        UserError: there is no such method; the message suggests the nearest known name. Or it is an
            extension's, and cannot be imported.
    """
    # The user's own methods come first.
    if name in user_methods:
        return user_methods[name]
    try:
        return METHODS.find(name)
    except KeyError:
        raise _unknown_method(name, user_methods) from None


def _unknown_method(name: Any, user_methods: Iterable[str] = ()) -> UnknownName:
    """The error for a name that is no method's."""
    advice = _advice(name, [*user_methods, *METHODS])
    return UnknownName(
        f"there is no method {name!r}{advice}{known_list(METHODS, 'coterie methods')}"
    )


_OTHERS = """
    afl bfl ccfl cgpfl clusterfl cfmtl crfl fedacg fedala fedamp fedap fedas fedasync fedbe fedbn
    fedbuff fedcac fedclust fedcp feddc feddf feddyn fedem fedest fedfomo fedftg fedgen fedgh fedgkt fedgmm fedgroup fedhealth
    fedkd fedlc fedma fedmd fedmeta fedmgda fednh fednova fedntd fedpac fedpara fedpcl fedpd fedphp fedproto fedproxvr
    fedrecon fedrod fedrolex fedrs fedsam fedsim fedsoft fedsplit fedtgp fedtp fedvarp fedweit fesem flame flexcfl flis
    fltrust gpfl heterofl multikrum bulyan ktpfl lg lgfedavg lgfl localsgd mime mimelite mocha moon pacfl perfedavg
    perfedme pfedclub pfedgraph pfedhn pfedla pfedme pflego qfedavg qffl scaffnew scaffold slowmo splitfed stocfl tct wecfl
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
    "a method of your own runs in Python, coterie.begin(..., methods=[YourMethod()]); "
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
        settings = dict(method)
        if "name" not in settings:
            raise SettingError(
                f"a method's table needs a name, one of {', '.join(METHODS)}, got {method!r:.60}"
            )
        return built(method_class(str(settings.pop("name"))), settings)
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
