"""Reviews of split-half: which groups merge, which clients move, and the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from coterie.clustering import contrast, member_contrasts, noise_levels
from coterie.clustering.congruence import Contrast
from coterie.core import Client, Criterion, Note, Replies, tested, without
from coterie.methods._cluster_tree import Leaf, nodes_of_clients
from coterie.methods._hostile_few import left_out
from coterie.methods._split_half_probes import Evidence, evidence_of, with_cosines

MAX_PROBED_CLIENTS = 1_000
"""Most clients that the probes of a round ask, that a review asks, and that walk down the tree in a
round: the Gram matrix of their halves has ``(2n)²`` entries. A probe may ask ``ENOUGH_CLIENTS`` in
any case.
"""

MIN_P_OF_ONE_GROUP = 0.01
"""Two groups may be one, and a client may belong to a group, unless the p-value of that is below
this."""

WEISZFELD_ITERATIONS = 100
"""Number of iterations for a geometric median."""


def middle(leaves: Iterable[Leaf]) -> torch.Tensor:
    """Return the model ``(d,)`` from which all clients train in a review: the geometric median of the leaves' models.

    Each model counts once per client. If the median is not a single point, it is the one nearest to
    the mean. A mean would follow a single group with an outlying model, such as one of adversaries.
    The median is found by Weiszfeld's iteration; it is equivariant under orthonormal maps of the
    models.
    """
    groups = [leaf for leaf in leaves if leaf.clients]
    models = torch.stack([leaf.model for leaf in groups]).double()
    client_counts = torch.tensor([float(len(leaf.clients)) for leaf in groups], dtype=torch.float64)
    median = client_counts @ models / client_counts.sum()
    for _ in range(WEISZFELD_ITERATIONS):
        # Weiszfeld: the mean with weights 1 / distance.
        model_weights = client_counts / (models - median).norm(dim=1).clamp(min=1e-150)
        median = model_weights @ models / model_weights.sum()
    return median.to(groups[0].model.dtype)


def reviewed(
    level: float, leaves: Sequence[Leaf], replies: Replies, examples: Mapping[Client, int]
) -> tuple[list[Leaf], dict[int, int], list[Note]]:
    """Evaluate a review, in which all clients trained from one model.

    Args:
        level: probability of moving any client by mistake.
        leaves: the groups.
        replies: replies of the review.
        examples: client -> number of training examples, the weights of merged models; clients
            without a number count as 1.

    Returns:
        The groups after the review; node -> the node it was merged into; and the reasons.
    """
    evidence = evidence_of(replies)
    if evidence is None:
        return list(leaves), {}, []
    # 1. Clients move to a group that they fit better.
    groups, notes = _moved(level, leaves, evidence)
    # 2. The nearest groups that do not differ merge, two at a time.
    asked_counts = reviewers(leaves)
    hostile = replies.averaging.hostile
    merged: dict[int, int] = {}
    while pair := _closest(groups, evidence, asked_counts, hostile):
        stays, ends, difference = pair
        # Groups that became part of the one that ends go on with it.
        for node, merged_into in merged.items():
            if merged_into == ends.node:
                merged[node] = stays.node
        merged[ends.node] = stays.node
        groups = [leaf for leaf in groups if leaf.node not in (stays.node, ends.node)]
        groups.append(_joined(stays, ends, examples))
        notes.append(_merge_note(stays, ends, difference))
    # The cosines are the same for all notes of the review: the first one has them.
    if notes:
        notes[0] = with_cosines(notes[0], evidence.clients, evidence.products.numpy())
    return groups, merged, notes


def unchanged(leaves: Sequence[Leaf], replies: Replies, has_quorum: bool) -> Note:
    """Describe a review that changed nothing, by the two groups that are most likely to be one.

    Args:
        leaves: the groups.
        replies: replies of the review.
        has_quorum: whether enough clients answered.
    """
    evidence = evidence_of(replies)
    hostile = replies.averaging.hostile
    pairs = _pairs(leaves, evidence, reviewers(leaves), hostile) if evidence else []
    pair = max(pairs, key=lambda pair: pair[2].p, default=None)
    description = "reviewed: too few clients answered"
    if has_quorum:
        description = "reviewed: no client moves, no groups merge"
    clients = tuple(sorted(nodes_of_clients(leaves)))
    if pair is None:
        return Note(kind="keep", effect="keeps", clients=clients, text=description)
    group, other_group, difference = pair
    criterion = same_group(difference.p)
    return Note(
        kind="keep",
        effect="keeps",
        clients=clients,
        text=f"{description}; {criterion.text}",
        criteria=(criterion,),
        numbers={"distance": difference.distance},
        labels={"node": group.node, "other_node": other_group.node},
    )


def reviewers(leaves: Sequence[Leaf]) -> dict[int, int]:
    """Return the leaf's node -> the number of its clients that a review asks."""
    # The groups share the number of clients that may be asked; each has at least two of them.
    num_groups = sum(bool(leaf.clients) for leaf in leaves)
    max_asked = max(MAX_PROBED_CLIENTS // max(1, num_groups), 2)
    return {leaf.node: min(len(leaf.clients), max_asked) for leaf in leaves}


def _positions(leaf: Leaf, evidence: Evidence) -> list[int]:
    """Where the members of a group are among the clients of the evidence."""
    members = set(leaf.clients)
    return [position for position, client in enumerate(evidence.clients) if client in members]


def _moved(
    level: float, leaves: Sequence[Leaf], evidence: Evidence
) -> tuple[list[Leaf], list[Note]]:
    """Move clients that differ from their own group, but not from another one, to that group."""
    products = evidence.products.numpy()
    positions = {leaf.node: _positions(leaf, evidence) for leaf in leaves}
    # With this level for each client, the probability of moving any of them by mistake is ``level``.
    client_level = level / len(evidence.clients)
    node_of_client = nodes_of_clients(leaves)
    notes = []
    for leaf in leaves:
        members = positions[leaf.node]
        # A client that is alone in its group has nobody to differ from.
        if len(members) < 2:
            continue
        own_contrasts = member_contrasts(products, members)
        for position, from_own_group in zip(members, own_contrasts, strict=False):
            if not from_own_group.p < client_level:
                continue
            # It moves to the nearest other group, unless it differs from that one as well.
            nearest = _nearest_other_group(products, position, leaf.node, positions)
            if nearest is None:
                continue
            new_node, from_new_group = nearest
            if from_new_group.p > MIN_P_OF_ONE_GROUP:
                client = evidence.clients[position]
                node_of_client[client] = new_node
                note = _move_note(
                    client, leaf.node, new_node, from_own_group, from_new_group, client_level
                )
                notes.append(note)
    moved_leaves = [replace(leaf, clients=clients_at(node_of_client, leaf.node)) for leaf in leaves]
    return moved_leaves, notes


def _nearest_other_group(
    products: np.ndarray, position: int, own_node: int, positions: Mapping[int, list[int]]
) -> tuple[int, Contrast] | None:
    """The node of the group that is nearest to a client, besides its own, and the contrast with it; None without others.

    Args:
        products: ``(2n, 2n)``, the Gram matrix of the halves of n clients.
        position: the client's position among these.
        own_node: the node of its group.
        positions: node -> the positions of the group's members.
    """
    contrasts = {}
    for node, members in positions.items():
        if node != own_node and members:
            contrasts[node] = contrast(products, [position], members)
    return min(contrasts.items(), key=lambda item: item[1].distance, default=None)


def _move_note(
    client: Client,
    node_before: int,
    node_after: int,
    from_own_group: Contrast,
    from_new_group: Contrast,
    level: float,
) -> Note:
    """Describe the move of a client."""
    criteria = (
        Criterion(
            "p of belonging to its group",
            from_own_group.p,
            "<",
            level,
            met="it differs from its group",
            key="own_group",
        ),
        Criterion(
            "p of belonging to the other",
            from_new_group.p,
            ">",
            MIN_P_OF_ONE_GROUP,
            met="it does not differ from the other",
            key="other_group",
        ),
    )
    numbers = {
        "distance": from_own_group.distance,
        "distance_there": from_new_group.distance,
    }
    moves_text = f"client {client} moves from node {node_before} to node {node_after}"
    return Note(
        kind="move",
        effect="moves",
        clients=(client,),
        text=f"{moves_text}: {tested(criteria)}",
        criteria=criteria,
        numbers=numbers,
        labels={"at": node_before, "node": node_after},
    )


def clients_at(node_of_client: Mapping[Client, int], node: int) -> tuple[Client, ...]:
    """Return the clients that are at a node, in order."""
    return tuple(
        sorted(client for client, client_node in node_of_client.items() if client_node == node)
    )


def _closest(
    leaves: Iterable[Leaf], evidence: Evidence, asked_counts: Mapping[int, int], hostile: int
) -> tuple[Leaf, Leaf, Contrast] | None:
    """The nearest two groups of those whose signals do not differ; None if there are none."""
    pairs = _pairs(leaves, evidence, asked_counts, hostile)
    similar_pairs = [pair for pair in pairs if pair[2].p > MIN_P_OF_ONE_GROUP]
    return min(similar_pairs, key=lambda pair: pair[2].distance, default=None)


def _merge_note(stays: Leaf, ends: Leaf, difference: Contrast) -> Note:
    criterion = same_group(difference.p)
    return Note(
        kind="merge",
        effect="merges",
        clients=tuple(sorted((*stays.clients, *ends.clients))),
        text=criterion.text,
        criteria=(criterion,),
        numbers={"distance": difference.distance, "error": difference.error},
        labels={"node": stays.node, "other_node": ends.node},
    )


def same_group(p_value: float) -> Criterion:
    """The criterion of a merge: a p-value, of two groups being one, above :data:`MIN_P_OF_ONE_GROUP`."""
    return Criterion(
        "p of one group",
        p_value,
        ">",
        MIN_P_OF_ONE_GROUP,
        met="two groups do not differ",
        unmet="all groups differ",
        key="one_group",
    )


def _pairs(
    leaves: Iterable[Leaf], evidence: Evidence, asked_counts: Mapping[int, int], hostile: int
) -> list[tuple[Leaf, Leaf, Contrast]]:
    """All pairs of groups of which half of the clients that were asked answered, and the contrast between them."""
    # Too few members do not represent their group.
    products = evidence.products.numpy()
    groups = []
    for leaf in leaves:
        positions = _positions(leaf, evidence)
        if positions and 2 * len(positions) >= asked_counts[leaf.node]:
            groups.append((leaf, positions))
    pairs = []
    for group_number, (leaf, positions) in enumerate(groups):
        for other_leaf, other_positions in groups[group_number + 1 :]:
            difference = _contrast(products, positions, other_positions, hostile)
            pairs.append((leaf, other_leaf, difference))
    return pairs


def _contrast(
    products: np.ndarray, left: Sequence[int], right: Sequence[int], hostile: int
) -> Contrast:
    """The contrast of two groups, without the few clients that hide their difference, if there are any."""

    def differ(positions: tuple[int, ...], num_sets: int) -> tuple[bool, float]:
        left_positions = [position for position in left if position in positions]
        right_positions = [position for position in right if position in positions]
        # Of a group that is left out, nothing is known.
        if not (left_positions and right_positions):
            return False, -1.0
        p_value = contrast(products, left_positions, right_positions).p
        return p_value < MIN_P_OF_ONE_GROUP / (num_sets * (hostile + 1)), -p_value

    by_noise = np.argsort(-noise_levels(products), kind="stable").tolist()
    members = (*left, *right)
    order = [position for position in by_noise if position in members]
    hiding = left_out(members, hostile, differ, order) if hostile else None
    if not hiding:
        return contrast(products, left, right)
    return contrast(products, without(left, hiding), without(right, hiding))


DIVERGED_NORM_RATIO = 3.0
"""A model whose norm is this many times another one's (or 1, if that is less) has diverged. Models
that learn differ by far less. That of a hostile client that is alone in its group climbs its loss
for many rounds; a mean with it would ruin the group that it joins."""


def _joined(stays: Leaf, ends: Leaf, examples: Mapping[Client, int]) -> Leaf:
    """Merge two groups into the first, with the mean of their models, weighted by examples, without one that diverged."""
    stays_examples = _example_count(stays, examples)
    ends_examples = _example_count(ends, examples)
    # A diverged model has no part in the mean.
    stays_norm = float(stays.model.norm())
    ends_norm = float(ends.model.norm())
    if stays_norm > DIVERGED_NORM_RATIO * max(ends_norm, 1.0):
        model = ends.model
    elif ends_norm > DIVERGED_NORM_RATIO * max(stays_norm, 1.0):
        model = stays.model
    else:
        weighted_sum = stays_examples * stays.model + ends_examples * ends.model
        model = weighted_sum / (stays_examples + ends_examples)
    return replace(stays, clients=tuple(sorted((*stays.clients, *ends.clients))), model=model)


def _example_count(leaf: Leaf, examples: Mapping[Client, int]) -> int:
    """The training examples of a group's clients; a client whose number is not known counts as one."""
    return sum(examples.get(client, 1) for client in leaf.clients)
