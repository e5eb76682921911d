"""The pictures of all methods by name; the names are those of the cards in docs/methods/."""

from __future__ import annotations

from collections.abc import Callable

from tools.docs.drawings import methods_of_choice, methods_of_groups, methods_of_one_model
from tools.docs.drawings.canvas import Drawing

METHOD_DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "acfl": methods_of_groups.acfl,
    "apfl": methods_of_one_model.apfl,
    "auto": methods_of_choice.auto,
    "cfl": methods_of_groups.cfl,
    "cfl-gp": methods_of_groups.cfl_gp,
    "clove": methods_of_choice.clove,
    "ditto": methods_of_one_model.ditto,
    "fedamp": methods_of_one_model.fedamp,
    "fedavg": methods_of_one_model.fedavg,
    "fedbabu": methods_of_one_model.fedbabu,
    "fedbn": methods_of_one_model.fedbn,
    "feddrift": methods_of_choice.feddrift,
    "fedfa": methods_of_one_model.fedfa,
    "fedopt": methods_of_one_model.fedopt,
    "fedper": methods_of_one_model.fedper,
    "fedprox": methods_of_one_model.fedprox,
    "fedrep": methods_of_one_model.fedrep,
    "flhc": methods_of_groups.flhc,
    "flsc": methods_of_choice.flsc,
    "hcct": methods_of_groups.hcct,
    "hcct-e": methods_of_groups.hcct_e,
    "hcct-p": methods_of_groups.hcct_p,
    "ifca": methods_of_choice.ifca,
    "independent": methods_of_one_model.independent,
    "knn-per": methods_of_one_model.knn_per,
    "maxfl": methods_of_one_model.maxfl,
    "pfedgraph": methods_of_one_model.pfedgraph,
    "race": methods_of_choice.race,
    "scaffold": methods_of_one_model.scaffold,
    "split-half": methods_of_groups.split_half,
    "split-half-private": methods_of_choice.split_half_private,
    "split-half-sums": methods_of_choice.split_half_sums,
    "timed": methods_of_one_model.timed,
    "tuned": methods_of_one_model.tuned,
}
