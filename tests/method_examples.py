"""Every method, with several settings, for the tests that hold all of them to the contract: a new method needs a row here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from coterie.contrib.fleet import Timed
from coterie.contrib.private import SplitHalfPrivate, SplitHalfSums
from coterie.contrib.rivals import CFLGP, CLoVE, FedDrift, PFedGraph
from coterie.core import Assignment, as_groups
from coterie.methods import (
    ACFL,
    APFL,
    CFL,
    FLHC,
    FLSC,
    HCCT,
    HCCTE,
    HCCTP,
    IFCA,
    MAXFL,
    METHODS,
    Auto,
    Ditto,
    FedAMP,
    FedAvg,
    FedBABU,
    FedBN,
    FedFA,
    FedOpt,
    FedPer,
    FedProx,
    FedRep,
    Independent,
    KNNPer,
    Race,
    Scaffold,
    SplitHalf,
    Tuned,
)

EXAMPLES: dict[str, Any] = {
    "fedavg": FedAvg(),
    "fedavg-half": FedAvg(fraction=0.5),
    "fedprox": FedProx(),
    "fedprox-half": FedProx(mu=1.0, fraction=0.5, weighting="uniform"),
    "fedamp": FedAMP(),
    "fedamp-half": FedAMP(rule="cosine", sigma=5.0, pull=1.0, fraction=0.5),
    "scaffold": Scaffold(),
    "scaffold-half": Scaffold(server_lr=0.5, fraction=0.5, weighting="data"),
    "fedopt": FedOpt(),
    "fedopt-momentum": FedOpt(optimizer="momentum", method="cfl"),
    "fedopt-adagrad": FedOpt(optimizer="adagrad", method=FLHC(warmup=2)),
    "fedopt-yogi": FedOpt(
        optimizer="yogi", method=SplitHalf(level=1e-3, probe_every=2, review_every=6)
    ),
    "fedopt-ifca": FedOpt(method=IFCA(models=3, initial="kmeans++", fraction=0.5)),
    "independent": Independent(),
    "cfl": CFL(),
    "cfl-half": CFL(fraction=0.5),
    "cfl-data-parent": CFL(
        weighting="data", post_split="parent-mean", scale="absolute", eps1=0.3, eps2=0.5
    ),
    "cfl-gradients": CFL(similarity="gradients", post_split="parent-mean"),
    "cfl-scheduled": CFL(split_rounds=(3, 5)),
    "cfl-fallback": CFL(fallback=True),
    "cfl-measured": CFL(gamma_max=None),
    "flhc": FLHC(warmup=3, threshold=1.0, fraction=0.5),
    "flhc-l1": FLHC(
        warmup=2, fraction=1.0, metric="l1", linkage="complete", threshold=None, groups=3
    ),
    "fedper": FedPer(),
    "fedper-half": FedPer(personal=0, fraction=0.5, weighting="uniform"),
    "fedbn": FedBN(),
    "fedbn-half": FedBN(layers=("rest",), fraction=0.5, weighting="uniform"),
    "fedrep": FedRep(head_epochs=2),
    "fedrep-half": FedRep(
        personal=2, head_epochs=None, body_epochs=3, fraction=0.5, weighting="data"
    ),
    "fedbabu": FedBABU(tune_epochs=1),
    "fedbabu-head": FedBABU(tune="head", fraction=0.5, weighting="uniform"),
    "fedbabu-body": FedBABU(head=0, tune="body"),
    "fedbabu-untuned": FedBABU(tune_epochs=0),
    "knn-per": KNNPer(),
    "knn-per-half": KNNPer(neighbours=3, scale=0.5, weight=0.5, fraction=0.5, weighting="uniform"),
    "knn-per-none": KNNPer(weight=0.0),
    "ditto": Ditto(),
    "ditto-half": Ditto(pull=0.1, epochs=3, fraction=0.5, weighting="uniform"),
    "apfl": APFL(),
    "apfl-half": APFL(mixture=0.25, adapt=False, fraction=0.5, weighting="data"),
    "hcct": HCCT(),
    "hcct-once": HCCT(one_shot=True),
    "hcct-half": HCCT(fraction=0.5, scale="per-client"),
    "hcct-once-half": HCCT(
        one_shot=True, fraction=0.5, newcomers="partition", scale="absolute", tradeoff=0.5
    ),
    "hcct-fixed": HCCT(groups=3, tradeoff=0.0),
    "hcct-whole": HCCT(tradeoff=float("inf")),
    "hcct-signals": HCCT(cosines="signals"),
    "hcct-signals-half": HCCT(cosines="signals", partition_every=1, memory=0.5, fraction=0.5),
    "hcct-e": HCCTE(),
    "hcct-e-signals": HCCTE(cosines="signals", partition_every=2),
    "hcct-e-code": HCCTE(layer="paper-code", one_shot=True),
    "hcct-p": HCCTP(),
    "acfl": ACFL(),
    "acfl-updates": ACFL(similarity="updates", threshold=0.5, mixing=0.0, fraction=0.5),
    "acfl-number": ACFL(threshold=None, groups=3, linkage="complete", mixing=1.0),
    "acfl-one": ACFL(cluster=False, mixing=0.5),
    "maxfl": MAXFL(pretrain_epochs=3),
    "maxfl-losses": MAXFL(rule="local-loss", pretrain_epochs=2, fraction=0.5),
    "maxfl-cho": MAXFL(rule="cho", server_lr=0.5),
    "fedfa": FedFA(),
    "fedfa-half": FedFA(fraction=0.5),
    "cfl-gp": CFLGP(models=3, period=1),
    "cfl-gp-half": CFLGP(models=3, layer="last", sketch=4, fraction=0.5, weighting="data"),
    "clove": CLoVE(models=3, first="losses"),
    "clove-random": CLoVE(models=3, patience=1, weighting="uniform"),
    "clove-estimated": CLoVE(models=4, estimate=True, patience=None, fraction=0.5),
    "pfedgraph": PFedGraph(),
    "pfedgraph-half": PFedGraph(alpha=0.2, alike=1.0, pull=0.5, fraction=0.5),
    "feddrift": FedDrift(period=2),
    "feddrift-half": FedDrift(period=3, delta=0.5, measure="accuracy", models=4, fraction=0.5),
    "feddrift-few": FedDrift(period=1, delta=1e-6, models=3, weighting="uniform"),
    "feddrift-one": FedDrift(delta=float("inf")),
    "ifca": IFCA(models=3, initial="kmeans++"),
    "ifca-distinct": IFCA(fraction=0.5, weighting="data"),
    "ifca-gradients": IFCA(averaging="gradients", initial="same"),
    "ifca-restarts": IFCA(models=3, initial="kmeans++", restarts=2, restart_rounds=2, fraction=0.5),
    "ifca-restarts-distinct": IFCA(restarts=3, restart_rounds=1),
    "flsc": FLSC(models=6, initial="kmeans++"),
    "flsc-random": FLSC(first="random", initial="same", fraction=0.5),
    "flsc-restarts": FLSC(models=5, overlap=3, restarts=2, restart_rounds=3),
    "auto": Auto(),
    "auto-half": Auto(fraction=0.5, patience=2, tuning=0),
    "tuned": Tuned(),
    "tuned-neighbours": Tuned(neighbours=3, epochs=1),
    "tuned-ditto": Tuned(method="cfl", start="own", pull=0.5),
    "race": Race(patience=3),
    "race-of-races": Race(
        methods=("fedper", Race(methods=("fedavg", "ifca"), patience=2)), patience=4
    ),
    "race-tuned": Tuned(method=Race(methods=("fedavg", "independent"), patience=2), epochs=0),
    "split-half": SplitHalf(level=1e-3, probe_every=2, review_every=6),
    "split-half-alert": SplitHalf(level=1e-3, probe_every=2, review_every=6, alert=True),
    "split-half-half": SplitHalf(
        level=1e-2, probe_every=1, fraction=0.5, weighting="uniform", steps=2
    ),
    "split-half-sums": SplitHalfSums(level=1e-3, probe_every=2, review_every=6, smallest=2),
    "split-half-sums-half": SplitHalfSums(
        level=1e-2, probe_every=1, fraction=0.5, weighting="uniform", steps=2, sketch=16
    ),
    "split-half-private": SplitHalfPrivate(first_probe=2),
    "timed": Timed(deadline=0.2, failures=0.2),
    "timed-buffered": Timed(method="split-half", mode="buffered", buffer=2),
    "timed-one": Timed(mode="buffered", buffer=1, concurrency=2, failures=0.2),
    "split-half-private-one": SplitHalfPrivate(first_probe=1, levels=2, steps=3),
}

IN_FEW_ROUNDS: dict[str, Any] = {
    "fedavg": FedAvg(fraction=0.5),
    "fedprox": FedProx(mu=0.5, fraction=0.5),
    "fedamp": FedAMP(fraction=0.6),
    "scaffold": Scaffold(fraction=0.5),
    "fedopt": FedOpt(method=CFL(eps1=10.0, eps2=0.0, gamma_max=0.0, persistence=1)),
    "independent": Independent(),
    "cfl": CFL(eps1=10.0, eps2=0.0, gamma_max=0.0, persistence=1, fraction=0.5),
    "flhc": FLHC(warmup=1, fraction=0.6, threshold=None, groups=2),
    "fedper": FedPer(fraction=0.5),
    "fedbn": FedBN(fraction=0.5),
    "fedrep": FedRep(head_epochs=2, fraction=0.5),
    "fedbabu": FedBABU(tune_epochs=1, tune="head"),
    "knn-per": KNNPer(neighbours=3, fraction=0.5),
    "ditto": Ditto(pull=0.5, fraction=0.5),
    "apfl": APFL(fraction=0.6),
    "hcct": HCCT(),
    "hcct-e": HCCTE(one_shot=True),
    "hcct-p": HCCTP(fraction=0.6),
    "acfl": ACFL(pretrain_epochs=1, fraction=0.6),
    "maxfl": MAXFL(pretrain_epochs=1),
    "fedfa": FedFA(),
    "cfl-gp": CFLGP(models=2, period=1, sketch=64, fraction=0.6),
    "clove": CLoVE(models=2, fraction=0.6),
    "timed": Timed(mode="buffered", buffer=2),
    "pfedgraph": PFedGraph(fraction=0.6),
    "feddrift": FedDrift(period=1, delta=1e-3, fraction=0.6),
    "ifca": IFCA(models=2, initial="kmeans++", initial_epochs=1, restarts=2, restart_rounds=1),
    "flsc": FLSC(models=3, first="random", fraction=0.6),
    "auto": Auto(patience=2),
    "tuned": Tuned(method="cfl", epochs=1),
    "race": Race(methods=("fedavg", "split-half"), patience=2),
    "split-half": SplitHalf(level=0.5, probe_every=1, review_every=2),
    "split-half-alert": SplitHalf(
        level=0.5, probe_every=1, review_every=2, alert=True, fraction=0.6
    ),
    "split-half-sums": SplitHalfSums(
        level=0.5, probe_every=1, review_every=2, smallest=1, sketch=16
    ),
    "split-half-private": SplitHalfPrivate(level=0.9, first_probe=1, sketch=8),
}
"""Every method, with settings under which something happens in a few rounds of four clients."""

EVERY_METHOD = sorted(IN_FEW_ROUNDS.keys() | METHODS)

ONE_OF_EACH_KIND = (
    "fedavg",  # means
    "fedper",  # layers that stay at the client
    "cfl",  # similarities of updates
    "ifca",  # a choice among models
    "split-half",  # probes, means of halves, held-out losses
)
"""Where a test crosses all methods with an engine, a form or a setting, and takes seconds, the quick
tests have these, and the slow ones the others."""


MOST_AND_LEAST_SHOWN = ("fedavg", "split-half")
"""Where each takes a second or more and the kind hardly matters: the method of which a server sees the
least, and that of which it sees the most."""


def slow(*values: Any) -> list[Any]:
    """Values of a test's parameter that only the slow tests have."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def slow_cases(*cases: tuple[Any, ...]) -> list[Any]:
    """Values of several parameters of a test, a tuple for each case, that only the slow tests have."""
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


def of_each_kind(names: Iterable[str], kinds: Iterable[str] = ONE_OF_EACH_KIND) -> list[Any]:
    """Parameters of a test: the names, those that are not in ``kinds`` as slow tests."""
    parameters = []
    for name in names:
        marks = () if name in kinds else (pytest.mark.slow,)
        parameters.append(pytest.param(name, marks=marks))
    return parameters


def of_each_method(names: Iterable[str]) -> list[Any]:
    """Parameters of a test: names of :data:`EXAMPLES`, all but the first of each method as slow tests."""
    tested = set()
    parameters = []
    for name in names:
        method = EXAMPLES[name].name
        parameters.append(pytest.param(name, marks=pytest.mark.slow if method in tested else ()))
        tested.add(method)
    return parameters


OF_GIVEN_NUMBER = [
    "cfl-scheduled",
    "cfl-gp",
    "flhc-l1",
    "acfl-number",
    "ifca",
    "ifca-restarts",
    "flsc",
    "clove",
]
FINDS_GROUPS = [
    "hcct", "hcct-signals", *OF_GIVEN_NUMBER[4:],
    *(n for n in EXAMPLES if n.startswith(("cfl", "flhc", "hcct-once", "acfl", "split-half"))
      and n not in ("acfl-one", "cfl-gp-half")),
]  # fmt: skip
"""Those that find the groups of an easy world."""

DECIDES = [name for name in FINDS_GROUPS if name not in OF_GIVEN_NUMBER]
"""Those of them that decide how many groups there are."""


def check_assignment(assignment: Assignment, clients: tuple[int, ...]) -> None:
    assert as_groups(assignment.groups) == assignment.groups
    assert sorted(c for group in assignment.groups for c in group) == list(clients)
    assert sorted(assignment.row) == list(clients)
    assert set(assignment.row.values()) <= set(range(len(assignment.models)))
    assert torch.isfinite(assignment.models).all()
