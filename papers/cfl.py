"""CFL on data: F. Sattler, K.-R. Müller, W. Samek, arXiv 1910.01991, figures 4 to 7.

Twenty clients in four clusters, each of which exchanges two labels (VI-A). Figure 5: after 50
rounds of Federated Learning, the separation gap g(α) by how many examples a client has. Figure 6:
the gap after each of the first 50 rounds. Both with the cosines of weight-updates and of full
gradients. Figure 7 (VI-B): two clients, congruent (digits 0-4 and 5-9) and incongruent (two labels
exchanged), and the norms of the criteria (32) and (33) as the rounds go by. Figure 4 shows a
parameter tree; ours is that of a run, with newcomers that walk down it by Algorithm 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.clustering import optimal_bipartition, separation_gap
from coterie.core import Note
from coterie.data.world import World
from coterie.methods import CFL
from coterie.records.round_line import line_of_round
from coterie.report.group_tree import Group, history
from papers import cfl_figures as figures
from papers.cfl_claims import gap_claims, gap_table, norm_claims, round_claims, tree_claims
from papers.halved import SPLIT_HALF, seen
from papers.numbers import short
from papers.running import rounds_of, world_of
from papers.study import Resources, Study
from papers.watched import GRADIENTS, UPDATES, Watched, cosines_of

# -- figure 4
# --------------------------------------------------------------------------------------------------------------


def grow_tree(
    on: Resources,
    *,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    """CFL's tree of groups, its leaves, the true groups, and who came later."""
    world = world_of(on, scenario, training, seed)
    founders = world.attendance.founders(world.clients)
    lines = [line_of_round(done) for done in rounds_of(CFL(), world, on, rounds, seed)]
    return {
        "tree": branch(history(lines)),
        "groups": lines[-1]["groups"],
        "truth": [list(group) for group in world.truth or ()],
        "newcomers": [client for client in sorted(world.clients) if client not in founders],
        "accuracy": short(
            float(np.mean([entry["accuracy"] for entry in lines[-1]["clients"].values()]))
        ),
    }


def branch(group: Group) -> dict[str, Any]:
    """A group of a tree, and what became of it, as plain values."""
    return {
        "clients": list(group.clients),
        "round": group.round,
        "parts": [branch(part) for part in group.parts],
    }


# -- figures 5 and 6
# -------------------------------------------------------------------------------------------------------


def gap_of(note: Note, of: str, world: World) -> dict[str, float]:
    """The separation gap of a watched round, and whether the best cut leaves every cluster whole (1) or not (0)."""
    cluster = {client: i for i, group in enumerate(world.truth or ()) for client in group}
    labels = np.array([cluster[client] for client in note.order])
    similarity = cosines_of(note, of)
    cut = optimal_bipartition(similarity)
    apart = {int(labels[i]) for i in cut.left} & {int(labels[i]) for i in cut.right}
    return {"gap": short(separation_gap(similarity, labels)), "correct": float(not apart)}


def gap_at_last(
    on: Resources,
    *,
    problem: str,
    examples: int,
    share: float,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    """The gap after so many rounds of Federated Learning, with so many training examples a client; and what one split-half
    probe finds at the same model.

    share: of a client's examples that is trained on, the rest being held out to test.
    """
    size = {"samples": round(examples / share), "train": share, "validation": 0.0}
    world = world_of(on, {**scenario, **size}, training, seed)
    *_, last = rounds_of(Watched(gradients_from=rounds), world, on, rounds, seed)
    gaps: dict[str, Any] = {of: gap_of(last.notes[-1], of, world) for of in (UPDATES, GRADIENTS)}
    return gaps | {SPLIT_HALF: seen(on, last.position, world, seed)}


def gap_by_round(
    on: Resources,
    *,
    problem: str,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    """The gap in each round."""
    world = world_of(on, scenario, training, seed)
    notes = [
        done.notes[-1] for done in rounds_of(Watched(gradients_from=1), world, on, rounds, seed)
    ]
    each = {of: [gap_of(note, of, world) for note in notes] for of in (UPDATES, GRADIENTS)}
    return {
        of: {name: [one[name] for one in series] for name in ("gap", "correct")}
        for of, series in each.items()
    }


# -- figure 7
# --------------------------------------------------------------------------------------------------------------


def kept(rounds: int) -> list[int]:
    """The rounds of which norms are kept: dense at first, where they change fast, then evenly spread.

    >>> kept(1000)[:4], len(kept(1000))
    ([1, 2, 3, 4], 83)
    """
    both = np.concatenate([np.geomspace(1, rounds, 40), np.linspace(1, rounds, 51)])
    return [int(round) for round in np.unique(both.round())]


def norms_by_round(
    on: Resources,
    *,
    problem: str,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    """The norm of the mean update (32) and the greatest norm of a client's (33), round by round."""
    world = world_of(on, scenario, training, seed)
    notes = [done.notes[-1] for done in rounds_of(Watched(), world, on, rounds, seed)]
    norms = {
        name: [short(notes[round - 1].numbers[name]) for round in kept(rounds)]
        for name in ("mean_norm", "client_norm")
    }
    return {"rounds": kept(rounds), **norms}


STUDIES = (
    Study(
        name="cfl/fig4",
        where="figure 4",
        what="The parameter tree of a run, and newcomers that walk down it",
        measure=grow_tree,
        claims=tree_claims,
        figure=figures.tree,
    ),
    Study(
        name="cfl/fig5",
        where="figure 5",
        what="The separation gap by how many examples a client has",
        measure=gap_at_last,
        claims=gap_claims,
        figure=figures.gap_by_examples,
        table=gap_table,
    ),
    Study(
        name="cfl/fig6",
        where="figure 6",
        what="The separation gap by the rounds of Federated Learning",
        measure=gap_by_round,
        claims=round_claims,
        figure=figures.gap_by_round,
    ),
    Study(
        name="cfl/fig7",
        where="figure 7",
        what="The norms of CFL's criteria with two clients, congruent and incongruent",
        measure=norms_by_round,
        claims=norm_claims,
        figure=figures.norms,
    ),
)
