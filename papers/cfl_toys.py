"""CFL's toys: F. Sattler, K.-R. Müller, W. Samek, arXiv 1910.01991, figures 1 and 2.

Figure 1 shows two ways in which no single model fits all clients. Left, "federated XOR": each
cluster's points are easily separated by a line, those of both by none. Right: the clusters call the
same points by opposite names.

Figure 2 follows Federated Learning of two clients down their risk surfaces. Where these are at odds
(incongruent), it stops at a point where both clients still pull, in opposite directions. Where both
risks vanish somewhere together (congruent, grey), the clients' updates vanish too.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from coterie.core import Assignment, Note, Training
from coterie.data.objective import Metric, Objective
from coterie.data.own import from_lists
from coterie.data.world import ClientData, World, whole
from coterie.methods import CFL, FedAvg
from coterie.report.summary import agreement
from papers import cfl_toy_figures as figures
from papers.numbers import mean, picked, short, spread
from papers.running import rounds_of
from papers.study import Claim, Resources, Row, Study
from papers.toys import CENTRES, Position, gain, risk, toy_clients
from papers.watched import GRADIENTS, UPDATES, Watched, cosines_of

# -- figure 1
# --------------------------------------------------------------------------------------------------------------


def fit_toy(
    on: Resources,
    *,
    toy: str,
    model: str,
    clients: int,
    points: int,
    spread: float,
    rounds: int,
    training: Mapping[str, Any],
    seed: int,
) -> dict[str, Any]:
    """One model for all, and CFL: accuracy of both, whether CFL's groups are the clusters, and the lines of linear models."""
    truth = (tuple(range(0, clients, 2)), tuple(range(1, clients, 2)))
    data = toy_clients(toy, clients, points, spread, seed)
    world = from_lists(
        data,
        model=model,
        classes=2,
        validation=0.0,
        seed=seed,
        training=Training(**training),
        truth=truth,
    )
    found: dict[str, Any] = {}
    for method in (FedAvg(), CFL()):
        *_, last = rounds_of(method, world, on, rounds, seed)
        scores = last.scores or {}
        found[method.name] = {
            "accuracy": short(float(np.mean([score["accuracy"] for score in scores.values()]))),
            "ari": agreement(last.assignment.groups, truth),
            "lines": lines(last.assignment) if model == "linear" else [],
        }
    return found


def lines(assignment: Assignment) -> list[list[float]]:
    """a, b, c of ``a x + b y + c = 0``, where the linear model of each group wavers between its two classes.

    Such a model's row ``(6,)`` has the weights of both classes, then their biases.
    """
    rows = [assignment.models[assignment.row[group[0]]] for group in assignment.groups]
    apart = [torch.cat([row[2:4] - row[:2], row[5:] - row[4:5]]) for row in rows]
    return [[short(float(value)) for value in each] for each in apart]


def toy_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    claims = []
    for toy in CENTRES:
        own = picked(rows, toy=toy, model="linear")
        right = [row["found"]["cfl"]["ari"] == 1.0 for row in own]
        within = spread(own, "cfl", "accuracy")
        claims.append(
            Claim(
                what=f"{toy}, linear: within a cluster",
                printed="easily separated",
                ours=f"{within}; CFL finds both clusters in {sum(right)} of {len(right)}",
                rule="accuracy of CFL at least 0.95, and its groups are the clusters in every seed",
                holds=mean(own, "cfl", "accuracy") >= 0.95 and all(right),
            )
        )
    for toy, model in itertools.product(CENTRES, ("linear", "mlp")):
        own, fits = picked(rows, toy=toy, model=model), (toy, model) == ("xor", "mlp")
        rule = "accuracy of FedAvg at least 0.95" if fits else "accuracy of FedAvg at most 0.8"
        got = mean(own, "fedavg", "accuracy")
        claims.append(
            Claim(
                what=f"{toy}, {model}: one model for all",
                printed="a model that is complex enough fits" if fits else "no single model fits",
                ours=spread(own, "fedavg", "accuracy"),
                rule=rule,
                holds=got >= 0.95 if fits else got <= 0.8,
                aside="" if fits else "any run passes",
            )
        )
    return tuple(claims)


# -- figure 2
# --------------------------------------------------------------------------------------------------------------


def follow_path(
    on: Resources,
    *,
    problem: str,
    bowls: Sequence[Sequence[float]],
    start: Sequence[float],
    rounds: int,
    training: Mapping[str, Any],
    seed: int,
) -> dict[str, Any]:
    """θ after every round ``(rounds + 1, 2)``, and how far the clients' updates and gradients agree in the last."""
    each = [whole(torch.tensor([bowl]), torch.zeros(1, dtype=torch.int64)) for bowl in bowls]
    world = World(
        clients={
            i: ClientData(train=split, validation=split, test=split) for i, split in enumerate(each)
        },
        model=partial(Position, tuple(start)),
        training=Training(**training),
        objective=Objective(loss=risk, metrics={"accuracy": Metric(gain, whole=False)}),
    )
    path: list[list[float]] = [list(start)]
    notes: list[Note] = []
    for done in rounds_of(Watched(gradients_from=rounds), world, on, rounds, seed):
        path.append([short(float(value)) for value in done.assignment.models[0]])
        notes += done.notes
    norms = {
        name: [short(note.numbers[name]) for note in notes] for name in ("mean_norm", "client_norm")
    }
    cosines = {of: short(float(cosines_of(notes[-1], of)[0, 1])) for of in (UPDATES, GRADIENTS)}
    return {"path": path, **norms, "cosines": cosines}


def path_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    apart, together = (picked(rows, problem=problem) for problem in ("incongruent", "congruent"))
    ends = lambda found, name: found[name][-1] / max(found["client_norm"])  # noqa: E731
    worst = lambda some, name: max(ends(row["found"], name) for row in some)  # noqa: E731
    least = min(ends(row["found"], "client_norm") for row in apart)
    cosine = max(row["found"]["cosines"][GRADIENTS] for row in apart)
    still = "at most 0.01 of the greatest update at first"
    return (
        Claim(
            what="incongruent: directions of the clients' gradients",
            printed="cosine −1 (13)",
            ours=f"cosine {cosine:.3f}, or less",
            rule="at most −0.99 from every start",
            holds=cosine <= -0.99,
        ),
        Claim(
            what="incongruent: Federated Learning stops",
            printed="a stationary point of the joint objective",
            ours=f"mean update {worst(apart, 'mean_norm'):.1g} of the first",
            rule=still,
            holds=worst(apart, "mean_norm") <= 0.01,
        ),
        Claim(
            what="incongruent: the clients still pull",
            printed="gradients of positive norm",
            ours=f"greatest update {least:.2f} of the first, or more",
            rule="at least 0.1 of the first",
            holds=least >= 0.1,
        ),
        Claim(
            what="congruent: all updates vanish",
            printed="the norm of both clients' updates goes to zero",
            rule=still,
            ours=f"greatest update {worst(together, 'client_norm'):.1g} of the first",
            holds=worst(together, "client_norm") <= 0.01,
        ),
    )


STUDIES = (
    Study(
        name="cfl/fig1",
        where="figure 1",
        what="Two toys that no single model fits: XOR, and labels that diverge",
        measure=fit_toy,
        claims=toy_claims,
        figure=figures.toys,
    ),
    Study(
        name="cfl/fig2",
        where="figure 2",
        what="Paths of Federated Learning down incongruent and congruent risks",
        measure=follow_path,
        claims=path_claims,
        figure=figures.paths,
    ),
)
