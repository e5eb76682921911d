"""The methods, one file each. A method is a file here and a row in the list at the end.

:data:`METHODS` contains them, and those that extensions register.
"""

from __future__ import annotations

from coterie.methods import _named
from coterie.methods._named import made as made
from coterie.methods._named import method_class as method_class
from coterie.methods._named import preset as preset
from coterie.methods._presets import Presets as Presets
from coterie.methods.acfl import ACFL as ACFL
from coterie.methods.apfl import APFL as APFL
from coterie.methods.auto import Auto as Auto
from coterie.methods.cfl import CFL as CFL
from coterie.methods.ditto import Ditto as Ditto
from coterie.methods.fedamp import FedAMP as FedAMP
from coterie.methods.fedavg import FedAvg as FedAvg
from coterie.methods.fedbabu import FedBABU as FedBABU
from coterie.methods.fedbn import FedBN as FedBN
from coterie.methods.fedfa import FedFA as FedFA
from coterie.methods.fedopt import FedOpt as FedOpt
from coterie.methods.fedper import FedPer as FedPer
from coterie.methods.fedprox import FedProx as FedProx
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
from coterie.methods.scaffold import Scaffold as Scaffold
from coterie.methods.split_half import SplitHalf as SplitHalf
from coterie.methods.tuned import Tuned as Tuned
from coterie.settings.calls import public

METHODS = _named.METHODS
"""Name -> class, in the order used in lists and tables: Coterie's own, then those of extensions."""

for method in (
    Auto,
    FedAvg,
    FedProx,
    FedOpt,
    Scaffold,
    Independent,
    CFL,
    FLHC,
    HCCT,
    HCCTE,
    HCCTP,
    FedPer,
    FedBN,
    Ditto,
    APFL,
    FedRep,
    FedBABU,
    KNNPer,
    FedAMP,
    ACFL,
    MAXFL,
    FedFA,
    IFCA,
    FLSC,
    SplitHalf,
    Tuned,
    Race,
):
    METHODS.built_in[method.name] = public(method)
