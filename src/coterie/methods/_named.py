"""Methods by name. The list itself is in :mod:`coterie.methods`; methods that are made of others look them up here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from coterie.core import Method
from coterie.extensions import Registry
from coterie.settings import SettingError, UserError, build
from coterie.settings.calls import public
from coterie.settings.field_names import edits, spelled

METHODS: Registry[type[Any]] = Registry(
    "coterie.methods",
    "a method's class",
    accepts=lambda name, cls: isinstance(cls, type) and getattr(cls, "name", None) == name,
    prepared=public,
)
"""Name -> class; :mod:`coterie.methods` fills in Coterie's own."""


def method_class(name: str, own: Mapping[str, type[Any]] = MappingProxyType({})) -> type[Any]:
    """Return the class of the method called ``name``.

    Args:
        name: a method's name.
        own: name -> class of a user's own methods.

    Raises:
        UserError: there is no such method; the message suggests the nearest known name. Or it is an
            extension's, and cannot be imported.
    """
    if name in own:
        return own[name]
    try:
        return METHODS.find(name)
    except KeyError:
        instead = _instead(name, [*own, *METHODS])
        raise UserError(
            f"there is no method {name!r}{instead} (known: {', '.join(METHODS)})"
        ) from None


_OTHERS = """
    afl bfl ccfl cgpfl clusterfl cfmtl crfl fedacg fedadagrad fedadam fedala fedamp fedap fedas fedasync fedavgm fedbe fedbn
    fedbuff fedcac fedclust fedcp feddc feddf feddyn fedem fedest fedfomo fedftg fedgen fedgh fedgkt fedgmm fedgroup fedhealth
    fedkd fedlc fedma fedmd fedmeta fedmgda fednh fednova fedntd fedopt fedpac fedpara fedpcl fedpd fedphp fedproto fedproxvr
    fedrecon fedrod fedrolex fedrs fedsam fedsim fedsoft fedsplit fedtgp fedtp fedvarp fedweit fedyogi fesem flame flexcfl flis
    fltrust gpfl heterofl multikrum bulyan ktpfl lg lgfedavg lgfl localsgd mime mimelite mocha moon pacfl perfedavg
    perfedme pfedclub pfedgraph pfedhn pfedla pfedme pflego qfedavg qffl scaffnew scaffold slowmo splitfed stocfl tct wecfl
    zeno
"""
OTHERS = frozenset(_OTHERS.split())
"""Algorithms of the literature that are not among Coterie's methods, as
:func:`~coterie.settings.field_names.spelled`."""

HERE = {
    "fedprox": "FedProx is fedavg with the setting training.proximal, such as 0.01",
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

OWN_METHODS = 'your own methods run beside Coterie\'s, see "Add a method" in the documentation'


def _instead(name: Any, known: Sequence[str]) -> str:
    """What to do about a name that is no method's: a setting that does the same, the right spelling, or an own method.

    Names of algorithms differ by few letters, so one of the literature is not taken for a slip, and
    a slip is at most two letters.
    """
    spelling = spelled(name)
    if spelling in HERE:
        return f"; {HERE[spelling]}"
    exact = [one for one in known if spelled(one) == spelling]
    if not exact and spelling in OTHERS:
        return f", which is not included; {OWN_METHODS}"
    slips = {one: edits(spelling, spelled(one)) for one in known}
    best = exact[0] if exact else min(slips, key=slips.__getitem__)
    if exact or slips[best] <= (1 if len(spelling) < 6 else 2):
        return f"; did you mean {best}?"
    return f", which is not included; {OWN_METHODS}"


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
            raise SettingError(
                f"a method's table needs a name, one of {', '.join(METHODS)}, got {given!r:.60}"
            )
        return build(method_class(str(settings.pop("name"))), settings)
    if isinstance(given, type):
        raise SettingError(
            f"a method is an object with its settings, got the class {given.__name__}: write {given.__name__}()"
        )
    if isinstance(given, Method):
        return given
    raise SettingError(
        f"a method is a name, a table with a name, or an object with the five functions, got {given!r:.60}"
    )
