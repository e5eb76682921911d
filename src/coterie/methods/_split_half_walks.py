"""Newcomers of split-half: down the parameter tree, by updates of halves and the distance to every branch.

Coterie's own, after CFL's Algorithm 4, which follows the edge with the single update of greatest
cosine. Here a walker trains on halves from the model of its node, as that node's clients did in the
probe that split it. So its update can be compared with theirs. For every branch, this gives the
squared distance of the mean signals, without the bias of noise, and the p-value of the walker being
of that branch. The walker moves to the nearest branch; if it differs from all branches, it becomes
a new leaf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from coterie.clustering.congruence import Excess, Excesses, excess
from coterie.clustering.halves import levels_of
from coterie.core import Client, Criterion, Groups, Note, Replies, state
from coterie.methods._cluster_tree import Tree, walk_note
from coterie.methods._split_half_probes import Evidence


@state("split-half.probed")
class SplitProbe:
    """The probe that split a node.

    Attributes:
        steps: mini-batch steps of each half.
        levels: client -> noise of its whole update, ``‖D‖²``.
        share: ``1/r``, with r the effective dimension of the noise.
        df: degrees of freedom of that estimate.
    """

    steps: int
    levels: Mapping[Client, float]
    share: float
    df: float


def split_probe(steps: int, evidence: Evidence, parts: Groups) -> SplitProbe:
    """Summarise the probe of a split.

    The directions of noise are estimated within the parts, whose members are identically distributed,
    because the difference of the parts has other directions.

    Args:
        steps: mini-batch steps of each half.
        evidence: result of the probe.
        parts: the parts of the split.
    """
    estimates = []
    for part in parts:
        if len(part) > 1:
            noise = evidence.of(part).noise
            if np.isfinite(noise.df):
                estimates.append(noise)
    # Without a part of two clients or more, all clients must do.
    if not estimates:
        estimates = [evidence.noise]
    noise_levels = map(float, evidence.halves.levels)
    return SplitProbe(
        steps=steps,
        levels=dict(zip(evidence.clients, noise_levels, strict=True)),
        share=max(noise.share for noise in estimates),
        df=sum(noise.df for noise in estimates),
    )


@dataclass(frozen=True)
class WalkResult:
    """Result of a step of the walkers.

    Attributes:
        tree: the tree, with new leaves.
        new_nodes: walker -> the node to which it goes.
        probed: inner node -> the probe that split it, with the noise of walkers that became new
            leaves below it.
        models: new leaf's node -> its model.
        notes: the reasons.
    """

    tree: Tree
    new_nodes: dict[Client, int]
    probed: dict[int, SplitProbe]
    models: dict[int, torch.Tensor]
    notes: list[Note]


def walk(
    tree: Tree,
    walkers: Mapping[Client, int],
    probed: Mapping[int, SplitProbe],
    replies: Replies,
    level: float,
) -> WalkResult:
    """Move walkers one level down, each to the nearest branch of its node.

    Args:
        tree: the parameter tree.
        walkers: walker -> the inner node where it is.
        probed: inner node -> the probe that split it.
        replies: replies of the walkers that answered.
        level: a walker whose p-values are all below this becomes a new leaf.
    """
    result = WalkResult(tree, {}, dict(probed), {}, [])
    # The noise is known of each walker that sent halves.
    noise_of_client: dict[Client, float] = {}
    if replies.halves is not None:
        noise_levels = map(float, levels_of(replies.halves.gram))
        noise_of_client = dict(zip(replies.halves.clients, noise_levels, strict=True))
    # The walkers of a node are compared with its branches together.
    walkers_at: dict[int, WalkersAtNode] = {}
    rows_at: dict[int, dict[Client, int]] = {}
    for row, client in enumerate(replies.clients):
        rows_at.setdefault(walkers[client], {})[client] = row
    for node, rows_of_client in rows_at.items():
        walkers_at[node] = WalkersAtNode(rows_of_client, replies.all_updates, noise_of_client, tree)
        walkers_at[node].compare(branches_of(tree, node, probed[node]), probed[node])
    for row, client in enumerate(replies.clients):
        node = walkers[client]
        distances = walkers_at[node].distances_of(client)
        # The walker goes to the nearest branch, unless it differs from all of them.
        child = min(distances, key=lambda branch_node: (distances[branch_node].value, branch_node))
        fits_no_branch = all(distance.p < level for distance in distances.values())
        if client in noise_of_client and fits_no_branch:
            # It becomes a new leaf, to which the next walkers of this node are compared too.
            update = replies.all_updates[row]
            grown_tree, child = result.tree.grow(node, client, update)
            probe = result.probed[node]
            result.probed[node] = replace(
                probe, levels={**probe.levels, client: noise_of_client[client]}
            )
            result.models[child] = tree.model(node) + update
            result = replace(result, tree=grown_tree)
            new_branch = branches_of(grown_tree, node, result.probed[node])[-1:]
            walkers_at[node].compare(new_branch, result.probed[node])
        result.new_nodes[client] = child
        note = _walk_note(
            result.tree,
            client,
            node,
            child,
            distances,
            level if client in noise_of_client else None,
        )
        result.notes.append(note)
    return result


NUMBERS_AT_ONCE = 2**20
"""Numbers in the updates of walkers that are compared at a time."""


class WalkBranch(NamedTuple):
    """A child of an inner node, to which a walker may go.

    Attributes:
        id: its node.
        mean: ``(p,)``, the mean update of the m clients that sent one in the probe, in the form
            that an edge keeps.
        levels: ``(m,)``, the noise of each of these updates, ``‖D‖²``.
        largest: the greatest squared norm of these updates.
    """

    id: int
    mean: torch.Tensor
    levels: np.ndarray
    largest: float


def branches_of(tree: Tree, node: int, probe: SplitProbe) -> list[WalkBranch]:
    """Return the branches of an inner node, from the updates on its edges.

    Args:
        tree: the parameter tree.
        node: the node.
        probe: the probe that split it.
    """
    branches = []
    for child in tree.children(node):
        # Updates on the edge whose noise is known: those of clients that sent halves.
        known_rows = [row for row, client in enumerate(child.heard) if client in probe.levels]
        if child.updates is None or not known_rows:
            continue
        updates = child.updates[known_rows].double()
        branch = WalkBranch(
            id=child.id,
            mean=updates.mean(dim=0),
            levels=np.array([probe.levels[child.heard[row]] for row in known_rows]),
            largest=float((updates**2).sum(dim=1).max()),
        )
        branches.append(branch)
    return branches


class WalkersAtNode:
    """The walkers of a node, and how far each is from each branch.

    Args:
        rows_of_client: walker -> its row among the updates.
        updates: ``(n, d)``, the updates of all that answered.
        noise_of_client: walker -> the noise of its update, as far as it is known.
        tree: the parameter tree.

    Attributes:
        distances: node of a branch -> for each of the w walkers, the squared distance of its signal
            from the mean signal of the branch, without the bias of noise, and the p-value of the
            walker being of the branch.
    """

    def __init__(
        self,
        rows_of_client: Mapping[Client, int],
        updates: torch.Tensor,
        noise_of_client: Mapping[Client, float],
        tree: Tree,
    ) -> None:
        self.rows = list(rows_of_client.values())
        self.place_of_client = {client: place for place, client in enumerate(rows_of_client)}
        self.updates = updates
        # Noise that is not known counts as none.
        self.noise = np.array([noise_of_client.get(client, 0.0) for client in rows_of_client])
        self.tree = tree
        self.distances: dict[int, Excesses] = {}

    def compare(self, branches: Sequence[WalkBranch], probe: SplitProbe) -> None:
        """Add the distances from some branches: :func:`~coterie.clustering.congruence.excess` with weights 1 and -1 / m.

        Args:
            branches: branches of the node, whose m clients have weights -1 / m.
            probe: the probe that split the node.
        """
        observed, own_squares = self._squares(branches)
        for column, branch in enumerate(branches):
            client_count = len(branch.levels)
            # The expected square of the noise in the difference: that of the walker, and that of
            # the mean of m clients. Its variance needs the sum of the squares of these levels.
            expected = self.noise + branch.levels.sum() / client_count**2
            squared_noise = self.noise**2 + (branch.levels**2).sum() / client_count**4
            levels_of_branch = np.broadcast_to(branch.levels, (len(self.noise), client_count))
            self.distances[branch.id] = excess(
                (observed[:, column], expected, squared_noise, expected**2 - squared_noise),
                np.column_stack((self.noise, levels_of_branch)),
                np.maximum(own_squares, branch.largest),
                probe.share,
                probe.df,
            )

    def _squares(self, branches: Sequence[WalkBranch]) -> tuple[np.ndarray, np.ndarray]:
        """Squared distances ``(w, b)`` of the walkers' updates from the mean of each branch, and squared norms ``(w,)``."""
        squared_distances = np.empty((len(self.rows), len(branches)))
        squared_norms = np.empty(len(self.rows))
        # A part of the walkers at a time: all updates in float64 may be too many numbers.
        walkers_at_once = max(1, NUMBERS_AT_ONCE // self.updates.shape[1])
        for start in range(0, len(self.rows), walkers_at_once):
            part = slice(start, start + walkers_at_once)
            updates = self.tree.short(self.updates[self.rows[part]]).double()
            squared_norms[part] = (updates**2).sum(dim=1).numpy()
            for column, branch in enumerate(branches):
                differences = updates - branch.mean
                squared_distances[part, column] = (differences**2).sum(dim=1).numpy()
        return squared_distances, squared_norms

    def distances_of(self, client: Client) -> dict[int, Excess]:
        """Return node of a branch -> the distance of a walker."""
        place = self.place_of_client[client]
        return {node: distances.excess_at(place) for node, distances in self.distances.items()}


def _walk_note(
    tree: Tree,
    client: Client,
    node: int,
    child: int,
    distances: Mapping[int, Excess],
    tested_level: float | None,
) -> Note:
    """Describe a walker's step; with p-values and the level only if the walker's noise is known."""
    compared = []
    numbers = {}
    p_values = {}
    for branch_node, distance in sorted(distances.items()):
        p_text = f" (p {distance.p:.2g})" if tested_level else ""
        compared.append(f"{distance.value:.3g} to node {branch_node}{p_text}")
        numbers[f"node_{branch_node}"] = distance.value
        p_values[f"p_{branch_node}"] = distance.p
    # Without its noise, a walker has no p-values, and is in no case a new leaf.
    criteria: tuple[Criterion, ...] = ()
    if tested_level is not None:
        numbers |= p_values
        criteria = (
            Criterion(
                "p of the most similar branch",
                max(p_values.values()),
                ">=",
                tested_level,
                "level",
                met="it fits a branch",
                unmet="it differs from all branches",
                key="nearest_branch",
            ),
        )
    return walk_note(
        tree,
        client,
        node,
        child,
        comparison=f"squared distance {', '.join(compared)}",
        new_group_reason=None if child in distances else "it differs from all",
        joined="joined the nearest branch",
        criteria=criteria,
        numbers=numbers,
    )
