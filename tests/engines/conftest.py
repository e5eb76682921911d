"""Every method, with settings under which something happens in a few rounds of four clients; and what tests of Flower need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from coterie.contrib.private import SplitHalfPrivate, SplitHalfSums
from coterie.contrib.rivals import CFLGP, CLoVE, FedDrift
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
    FedAvg,
    FedBABU,
    FedFA,
    FedPer,
    FedRep,
    Independent,
    KNNPer,
    Race,
    SplitHalf,
    Tuned,
)

EXAMPLES: Mapping[str, Any] = {
    "fedavg": FedAvg(fraction=0.5),
    "independent": Independent(),
    "cfl": CFL(eps1=10.0, eps2=0.0, gamma_max=0.0, persistence=1, fraction=0.5),
    "flhc": FLHC(warmup=1, fraction=0.6, threshold=None, groups=2),
    "fedper": FedPer(fraction=0.5),
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


@pytest.fixture(params=sorted(EXAMPLES.keys() | METHODS), name="method")
def _method(request: pytest.FixtureRequest) -> Any:
    return EXAMPLES[request.param]  # a KeyError here: a new method needs an example


@pytest.fixture
def flower_run() -> Iterator[None]:
    """This process is set up as that of a ServerApp, and waits by a clock that costs no time."""
    with pytest.importorskip("flowered", reason="Flower is not installed").a_run():
        yield


@pytest.fixture
def clock() -> Iterator[Any]:
    """As ``flower_run``, for nodes that take their time by this clock."""
    with pytest.importorskip("timed", reason="Flower is not installed").timed() as made:
        yield made
