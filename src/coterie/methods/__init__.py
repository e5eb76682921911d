"""The methods, one file each. :data:`METHODS` is the one list: a method is a file here and a row in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.core import Method
from coterie.methods.acfl import ACFL as ACFL
from coterie.methods.apfl import APFL as APFL
from coterie.methods.auto import Auto as Auto
from coterie.methods.cfl import CFL as CFL
from coterie.methods.ditto import Ditto as Ditto
from coterie.methods.fedavg import FedAvg as FedAvg
from coterie.methods.fedbabu import FedBABU as FedBABU
from coterie.methods.fedfa import FedFA as FedFA
from coterie.methods.fedper import FedPer as FedPer
from coterie.methods.fedrep import FedRep as FedRep
from coterie.methods.flhc import FLHC as FLHC
from coterie.methods.flsc import FLSC as FLSC
from coterie.methods.hcct import HCCT as HCCT
from coterie.methods.hcct import HCCTE as HCCTE
from coterie.methods.hcct import HCCTP as HCCTP
from coterie.methods.ifca import IFCA as IFCA
from coterie.methods.independent import Independent as Independent
from coterie.methods.knnper import KNNPer as KNNPer
from coterie.methods.maxfl import MAXFL as MAXFL
from coterie.methods.race import Race as Race
from coterie.methods.split_half import SplitHalf as SplitHalf
from coterie.methods.tuned import Tuned as Tuned
from coterie.settings import SettingError, UserError, build, nearest

METHODS: dict[str, type[Any]] = {
    method.name: method
    for method in (
        *(Auto, FedAvg, Independent, CFL, FLHC, HCCT, HCCTE, HCCTP, FedPer, Ditto, APFL, FedRep, FedBABU, KNNPer),
        *(ACFL, MAXFL, FedFA, IFCA, FLSC, SplitHalf, Tuned, Race),
    )
}
"""Name -> class, in the order used in lists and tables."""


def method_class(name: str) -> type[Any]:
    """Return the class of the method called ``name``.

    Args:
        name: a method's name.

    Raises:
        UserError: there is no such method; the message suggests the nearest known name.
    """
    if name not in METHODS:
        raise UserError(f"there is no method {name!r}{nearest(name, METHODS)} (known: {', '.join(METHODS)})")
    return METHODS[name]


def made(given: Any) -> Any:
    """Return a method from its name, from a table of its name and settings, or as it is.

    Args:
        given: The name, the table or the method.

    Raises:
        UserError: There is no such method, or a setting is not allowed.

    Example:
        >>> made({"name": "ifca", "models": 3})
        IFCA(models=3, initial='distinct', initial_epochs=0, restarts=1, restart_rounds=5, fraction=1.0, averaging='models',
        ...
    """
    if isinstance(given, str):
        return method_class(given)()
    if isinstance(given, Mapping):
        settings = dict(given)
        if "name" not in settings:
            raise SettingError(f"a method's table needs a name, one of {', '.join(METHODS)}, got {given!r:.60}")
        return build(method_class(str(settings.pop("name"))), settings)
    if type(given) in METHODS.values() or isinstance(given, Method):
        return given
    raise SettingError(f"a method is a name, a table with a name, or an object with the five functions, got {given!r:.60}")
