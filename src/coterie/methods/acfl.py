"""ACFL: clients are clustered once, by the fully-connected layers of briefly trained models, then models are mixed.

A. Filippakopoulos, D. Kastaniotis, C. Theocharatos, V. Vassalos, "Personalization in Distributed
tinyML Applications via Adaptive Clustered Federated Learning", Irida Labs, HETiA,
https://conference.hetia.org/?p=6893; its one algorithm.

Every client k trains E epochs from h⁰. The models are clustered hierarchically by cosine
similarity, and each cluster c starts from ``h_c = Σ (|D_k| / |D_c|) h_k``. Then, in each round,
every client trains from the model that serves it to ``h_k``; ``h_c`` becomes the same mean of the
new models; and the client is served ``λ h_k + (1 - λ) h_c``.

Deviations
- In a federation, or with adversaries, the limits of :mod:`coterie.robust` act first (ours).
- The paper does not give the linkage, E, λ or the other settings of training. ``linkage`` average,
  ``pretrain_epochs`` 2 (its figure 3: two suffice) and ``mixing`` 0.25 are ours.
- The paper's threshold 0.9 is a similarity: groups are merged while their distance ``1 - cos`` is
  below ``1 - t``.
- ``similarity`` updates (ours) compares the changes made by training. Weights share the first
  model, so their similarity depends on the amount of training, and a threshold found on one task
  may not suit another.
- Partial participation, which the paper does not treat: weights are renormalised over the clients
  that answered. An absent client's h_k stays, and the model that serves it follows h_c, so that λ =
  0 is FedAvg in every cluster in this case too.
- If fewer than ``quorum`` of the clients answer in the clustering exchange, there is one more round
  with one group of all clients; then they are asked again.
- Clients silent in the clustering exchange, and newcomers, train E epochs from the first model of
  that exchange, with the learning rate of that round, when they are next present. Each joins the
  group of the most similar client if that similarity is above the threshold (with ``groups``:
  always); else it forms a new group. Until then the first model of the exchange serves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch

from coterie.clustering import (
    closeness,
    cosine,
    cut_dendrogram,
    dendrogram,
    groups_of,
    layer_cosines,
    layer_grams,
)
from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Criterion,
    Federation,
    Needs,
    Note,
    Plan,
    Replies,
    Sign,
    Task,
    as_groups,
    rows_without,
    state,
    weights,
    without,
)
from coterie.settings import SettingError, check, nearest, setting


@state("acfl")
class ACFLState:
    """State of ACFL.

    Attributes:
        round: number of rounds completed.
        centres: ``(k, d)``, h_c of every group, including groups without members.
        home: client -> its group.
        own: ``(m, d)``, h_k of the clients in ``trained``.
        trained: clients that have trained in their group and have λ > 0.
        waiting: clients without a group.
        mixing: client -> λ, where it is set per client.
        columns: columns of every layer.
        compared: layers that are compared in the clustering.
        seats: result of the clustering, for placing late clients; None before it.
        missed: the last round in which too few clients answered the clustering exchange.
        notes: notes of the last exchange.
    """

    round: int
    centres: torch.Tensor
    home: Mapping[Client, int]
    own: torch.Tensor
    trained: tuple[Client, ...] = ()
    waiting: tuple[Client, ...] = ()
    mixing: Mapping[Client, float] = field(default_factory=dict)
    columns: Mapping[str, tuple[int, int]]
    compared: tuple[str, ...]
    seats: ClusterReferences | None = None
    missed: int = -1
    notes: tuple[Note, ...] = ()

    @property
    def groups(self) -> tuple[tuple[int, tuple[Client, ...]], ...]:
        """(number, members) of every group that has members."""
        members: dict[int, list[Client]] = {}
        for client, group in sorted(self.home.items()):
            members.setdefault(group, []).append(client)
        return tuple((group, tuple(clients)) for group, clients in sorted(members.items()))


@dataclass(frozen=True, kw_only=True)
class ACFL:
    """One clustering by the dense layers after a brief training, then each client's model mixed with its cluster's."""

    name: ClassVar[str] = "acfl"

    pretrain_epochs: int = setting(2, "epochs of training before the clustering (E)", ge=1)
    threshold: float | None = setting(
        0.9, "merge while the cosine similarity is above this (t)", ge=-1, le=1
    )
    groups: int | None = setting(None, "number of groups, instead of threshold", ge=1)
    linkage: str = setting(
        "average", "linkage of the clustering; ours", choices=("single", "complete", "average")
    )
    similarity: str = setting(
        "weights",
        "what is compared: weights (the paper) or updates (ours)",
        choices=("weights", "updates"),
    )
    layers: tuple[str, ...] = setting(
        (), "names of the layers compared; empty: the fully-connected ones"
    )
    mixing: float = setting(
        0.25, "weight of a client's own model in the model that serves it (λ)", ge=0, le=1
    )
    mixing_per_client: tuple[float, ...] = setting(
        (), "λ of each client, in the order of their ids; empty: mixing for all", ge=0, le=1
    )
    cluster: bool = setting(
        True, "false: no clustering, one group of all clients (the paper's baseline)"
    )
    fraction: float = setting(
        1.0, "fraction of each group's clients sampled in a round, at least one; ours", gt=0, le=1
    )
    quorum: float = setting(
        0.5, "minimum fraction of the clients that must answer before clustering; ours", gt=0, le=1
    )

    def __post_init__(self) -> None:
        check(self)
        if (self.threshold is None) == (self.groups is None):
            raise SettingError(
                f"exactly one of ACFL.threshold and ACFL.groups must be set and the other must be none, "
                f"got {self.threshold} and {self.groups}"
            )

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(occasional=("training",), unchanged_by="rotation", fraction=self.fraction)

    # -- the contract
    # ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> ACFLState:
        clients = federation.clients
        first = federation.draw(0)
        if self.groups is not None and self.groups > len(clients):
            raise SettingError(
                f"ACFL.groups must be at most the {len(clients)} clients, got {self.groups}"
            )
        if self.mixing_per_client and len(self.mixing_per_client) != len(clients):
            raise SettingError(
                f"ACFL.mixing_per_client must have one number for each of the {len(clients)} clients, "
                f"got {len(self.mixing_per_client)}; ACFL.mixing is one number for all"
            )
        return ACFLState(
            round=0,
            centres=first[None],
            home=dict.fromkeys(clients, 0),
            own=first.new_zeros(0, len(first)),
            columns=dict(federation.columns),
            compared=layers_compared(federation, self.layers, self.cluster),
            mixing=dict(zip(clients, self.mixing_per_client, strict=False)),
        )

    def plan(self, state: ACFLState, cohort: Cohort) -> Plan:
        # The clustering exchange (lines 2-9 of the algorithm): all clients, regardless of fraction.
        if self._clusters_now(state):
            task = Task(offered=(0,), epochs=self.pretrain_epochs)
            tasks = dict.fromkeys(cohort.present, task)
            return Plan(models=state.centres[:1], tasks=tasks, ends_round=False)
        models, row = self._served(state)
        asked: list[Client] = []
        for _, members in state.groups:
            asked += cohort.sample(members, self.fraction)
        tasks = {client: Task(offered=(row[client],)) for client in sorted(asked)}
        # Late clients train as in the clustering exchange, from the same model.
        late = sorted(set(state.waiting) & set(cohort.present))
        if late and state.seats is not None:
            task = Task(
                offered=(len(models) - 1,), epochs=self.pretrain_epochs, lr_round=state.seats.round
            )
            tasks.update(dict.fromkeys(late, task))
        # Without mixing and late clients, no single update is needed.
        mean_is_enough = not late and all(self._mixing(state, c) == 0 for c in state.home)
        return Plan(models=models, tasks=tasks, need="mean" if mean_is_enough else "rows")

    def step(self, state: ACFLState, replies: Replies) -> ACFLState:
        if self._clusters_now(state):
            return self._cluster(state, replies)
        return replace(self._place(self._train(state, replies), replies), round=state.round + 1)

    def assignment(self, state: ACFLState) -> Assignment:
        models, row = self._served(state)
        groups = [members for _, members in state.groups]
        if state.waiting:
            groups.append(state.waiting)
        return Assignment(models=models, row=row, groups=as_groups(groups))

    def explain(self, state: ACFLState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: ACFLState, clients: tuple[Client, ...]) -> ACFLState:
        new = set(clients) - set(state.home) - set(state.waiting)
        if state.seats is None:
            return replace(state, home={**state.home, **dict.fromkeys(sorted(new), 0)})
        return replace(state, waiting=tuple(sorted(new.union(state.waiting))))

    def retire(self, state: ACFLState, clients: tuple[Client, ...]) -> ACFLState:
        """Remove clients; their data in ``seats`` stay, so that on return they are likely to find their group."""
        gone = set(clients)
        trained, trained_models = rows_without(state.trained, state.own, gone)
        return replace(
            state,
            home={c: group for c, group in state.home.items() if c not in gone},
            trained=trained,
            own=trained_models,
            waiting=without(state.waiting, gone),
        )

    # -- rounds
    # ---------------------------------------------------------------------------------------------------------

    def _mixing(self, state: ACFLState, client: Client) -> float:
        """λ of a client."""
        return state.mixing.get(client, self.mixing)

    def _served(self, state: ACFLState) -> tuple[torch.Tensor, dict[Client, int]]:
        """The groups' models, then the mixed models, then the model of waiting clients; and client -> row."""
        # λ h_k + (1 - λ) h_c of each client that has a model h_k of its own.
        mixing = [self._mixing(state, client) for client in state.trained]
        share = torch.tensor(mixing).to(state.own)[:, None]
        centre = state.centres[[state.home[client] for client in state.trained]]
        mixed = share * state.own + (1 - share) * centre
        parts = [state.centres, mixed]
        if state.seats and state.waiting:
            parts.append(state.seats.first[None])
        models = torch.cat(parts)
        row = dict(state.home)
        for i, client in enumerate(state.trained):
            row[client] = len(state.centres) + i
        row.update(dict.fromkeys(state.waiting, len(models) - 1))
        return models, row

    def _train(self, state: ACFLState, replies: Replies) -> ACFLState:
        """A round of clients with a group: h_c is the mean of the h_k received, and h_k is kept where λ > 0."""
        state = replace(state, notes=())
        if replies.updates is None:  # λ = 0
            means = 0.0 if replies.means is None else replies.means[: len(state.centres)]
            return replace(state, centres=state.centres + means)
        members = replies.of(state.home)
        if not members.clients:
            return state
        models, row = self._served(state)
        rows = models[[row[client] for client in members.clients]] + members.all_updates
        centres = state.centres.clone()
        for group, clients in state.groups:
            answered = members.of(clients)
            if answered.clients:
                trained_models = rows[members.positions(clients)]
                data_weights = weights(answered, "data")
                centres[group] = answered.averaging.around(
                    centres[group], trained_models, data_weights
                )
        mixing = [client for client in members.clients if self._mixing(state, client) > 0]
        trained, kept_models = rows_without(state.trained, state.own, mixing)
        kept_models = torch.cat([kept_models, rows[members.positions(mixing)]])
        return replace(state, centres=centres, trained=(*trained, *mixing), own=kept_models)

    # -- the clustering
    # -------------------------------------------------------------------------------------------------

    def _clusters_now(self, state: ACFLState) -> bool:
        return self.cluster and state.seats is None and state.missed != state.round

    def _rule(self, state: ACFLState) -> Rule:
        return Rule(
            threshold=self.threshold,
            groups=self.groups,
            linkage=self.linkage,
            updates=self.similarity == "updates",
            columns=state.columns,
            compared=state.compared,
        )

    def _cluster(self, state: ACFLState, replies: Replies) -> ACFLState:
        everyone = tuple(sorted(state.home))
        answered = len(replies.clients)
        if answered < self.quorum * len(everyone) or answered < 1:
            text = (
                f"not clustered yet: {answered} of {len(everyone)} clients answered, "
                f"less than the quorum {self.quorum:g}"
            )
            return replace(
                state,
                missed=state.round,
                notes=(Note(kind="keep", effect="keeps", clients=everyone, text=text),),
            )
        late = tuple(sorted(set(everyone) - set(replies.clients)))
        seats, centres, note = clustered(
            self._rule(state), state.round, state.centres[0], replies, late
        )
        home = dict(zip(seats.clients, seats.home, strict=True))
        return replace(
            state,
            seats=seats,
            centres=centres,
            home=home,
            waiting=late,
            trained=(),
            own=state.own[:0],
            notes=(note,),
        )

    def _place(self, state: ACFLState, replies: Replies) -> ACFLState:
        """Place the waiting clients that answered."""
        late = replies.of(state.waiting)
        if not late.clients or state.seats is None:
            return state
        seats, models, notes = placed(self._rule(state), state.seats, len(state.centres), late)
        home = dict(zip(seats.clients, seats.home, strict=True))
        return replace(
            state,
            seats=seats,
            centres=torch.cat([state.centres, models]),
            notes=notes,
            home={**state.home, **{client: home[client] for client in late.clients}},
            waiting=tuple(client for client in state.waiting if client not in set(late.clients)),
        )


# ----------------------------------------------------------------------------------------------------
# Clustering: groups of similar clients, and placement of late clients.


@state("acfl.references")
class ClusterReferences:
    """Data that late clients are compared with.

    Attributes:
        round: number of rounds completed before the clustering exchange.
        first: ``(d,)``, the model that clients trained from in it.
        clients: m clients.
        home: number of each client's group.
        vectors: ``(m, p)``, the compared columns of the clients' trained models or updates.
    """

    round: int
    first: torch.Tensor
    clients: tuple[Client, ...]
    home: tuple[int, ...]
    vectors: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rule of the clustering, from ACFL's settings.

    Attributes:
        threshold: merge while the cosine similarity is above this; None with ``groups``.
        groups: number of groups; None with ``threshold``.
        linkage: linkage of the clustering.
        updates: whether updates are compared instead of weights.
        columns: columns of every layer.
        compared: the layers that are compared.
    """

    threshold: float | None
    groups: int | None
    linkage: str
    updates: bool
    columns: Mapping[str, tuple[int, int]]
    compared: tuple[str, ...]

    def rows(self, first: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        """Return the compared updates or weights ``(n, d)`` of clients that trained from ``first``."""
        return updates if self.updates else first + updates

    def vectors(self, first: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        """Return the updates or weights in the compared layers, ``(n, p)``; a copy."""
        spans = [self.columns[layer] for layer in self.compared]
        rows = self.rows(first, updates)
        return torch.cat([rows[:, start:stop] for start, stop in spans], dim=1)

    def criteria(
        self, key: str, similarity: float, sign: Sign, met: str, unmet: str = ""
    ) -> tuple[Criterion, ...]:
        """The comparison of a similarity with the threshold, above which clients merge; none without a threshold."""
        if self.threshold is None:
            return ()
        name = f"similarity of the {key.replace('_', ' ')}"
        return (Criterion(name, similarity, sign, self.threshold, "threshold", met, unmet, key),)

    def words(self) -> str:
        """Return the rule as text for notes."""
        return (
            f"threshold {self.threshold:g}"
            if self.threshold is not None
            else f"{self.groups} groups asked for"
        )


def layers_compared(
    federation: Federation, named: tuple[str, ...], needed: bool
) -> tuple[str, ...]:
    """Return the layers to compare, in the model's order.

    Args:
        federation: the layers of the model.
        named: names of layers; empty for the fully-connected layers.
        needed: whether there must be at least one layer.

    Raises:
        SettingError: the model does not have a named layer, or there is no layer though one is
            needed.
    """
    layer_names = ", ".join(federation.columns)
    for layer in named:
        if layer not in federation.columns:
            hint = nearest(layer, federation.columns)
            raise SettingError(
                f"ACFL.layers: the model has no layer {layer!r}{hint} (layers: {layer_names})"
            )
    if needed and not (named or federation.dense):
        raise SettingError(
            f"ACFL.layers is empty, which means the fully-connected layers, and the model has none; "
            f"name some of {layer_names}"
        )
    return tuple(layer for layer in federation.columns if layer in set(named or federation.dense))


def clustered(
    rule: Rule, round: int, first: torch.Tensor, replies: Replies, late: tuple[Client, ...]
) -> tuple[ClusterReferences, torch.Tensor, Note]:
    """Cluster the clients that answered.

    Args:
        rule: the rule of the clustering.
        round: number of rounds completed.
        first: ``(d,)``, the model that the clients trained from.
        replies: replies of the exchange.
        late: clients that were silent.

    Returns:
        The data for placing late clients, the models ``(k, d)`` of the groups (line 9 of the
        algorithm), and the reasons.
    """
    # Agglomerative clustering by cosine similarity of the compared layers.
    grams = layer_grams(rule.rows(first, replies.all_updates), rule.columns)
    compared = cosine(np.sum([grams[layer] for layer in rule.compared], axis=0))
    labels, merges = _labels(rule, compared)
    groups = [[replies.clients[i] for i in positions] for positions in groups_of(labels)]
    # Line 9: the model of a group is the data-weighted mean of its clients' models.
    models = torch.stack([_mean(first, replies, group) for group in groups])
    seats = ClusterReferences(
        round=round,
        first=first,
        clients=replies.clients,
        home=tuple(labels.tolist()),
        vectors=rule.vectors(first, replies.all_updates),
    )
    matrices = {**layer_cosines(grams), "compared": compared}
    similarity = {name: torch.from_numpy(matrix).float() for name, matrix in matrices.items()}
    note = _note(rule, groups, 1 - np.sort(merges), late)
    return seats, models, replace(note, heard=replies.clients, similarity=similarity)


def _labels(rule: Rule, similar: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(label of each client, numbered by first member; heights of the merges), from similarities ``(n, n)``."""
    merges = dendrogram(1 - similar, rule.linkage)
    threshold = None if rule.threshold is None else 1 - rule.threshold
    groups = None if rule.groups is None else min(rule.groups, len(similar))
    return cut_dendrogram(merges, threshold=threshold, groups=groups), merges[:, 2]


def _mean(first: torch.Tensor, replies: Replies, clients: list[Client]) -> torch.Tensor:
    """The data-weighted mean of the models that ``clients`` trained from ``first``."""
    members = replies.of(clients)
    return members.averaging.around(first, first + members.all_updates, weights(members, "data"))


def _note(
    rule: Rule, clusters: list[list[Client]], similarities: np.ndarray, late: tuple[Client, ...]
) -> Note:
    """Describe the cut, given the similarity of each merge, the greatest first."""
    count = len(clusters)
    merges = len(similarities) - (count - 1)  # that the cut made
    numbers = {"groups": float(count)}
    criteria: tuple[Criterion, ...] = ()
    if merges:
        numbers["last_merge"] = float(similarities[merges - 1])
        criteria += rule.criteria("last_merge", numbers["last_merge"], ">", met="two groups merged")
    if count > 1:
        numbers["next_merge"] = float(similarities[merges])
        criteria += rule.criteria("next_merge", numbers["next_merge"], "<=", met="no merge")
    last, further = (
        f"{numbers[name]:.3g}" if name in numbers else "none"
        for name in ("last_merge", "next_merge")
    )
    text = (
        f"{rule.linkage} linkage of the cosine similarity of {'updates' if rule.updates else 'weights'} in "
        f"{', '.join(layer or 'the only layer' for layer in rule.compared)}, {rule.words()}: "
        f"similarity of the last merge {last}, of the next one {further}; {count} group{'s' if count > 1 else ''}"
    )
    if late:
        text += f"; {len(late)} silent clients wait in a separate group"
    groups = as_groups([*clusters, late] if late else clusters)
    return Note(
        kind="cluster" if len(groups) > 1 else "keep",
        effect="divides" if len(groups) > 1 else "keeps",
        clients=tuple(sorted(c for g in groups for c in g)),
        text=text,
        parts=groups,
        numbers=numbers,
        criteria=criteria,
        otherwise="the groups would have been different",
    )


def placed(
    rule: Rule, seats: ClusterReferences, groups: int, replies: Replies
) -> tuple[ClusterReferences, torch.Tensor, tuple[Note, ...]]:
    """Place late clients that trained from ``seats.first``.

    A client with an older vector is compared with that vector too; then the new one replaces it.

    Args:
        rule: the rule of the clustering.
        seats: data of the clients placed so far.
        groups: number of groups; new groups are numbered from there.
        replies: replies of the late clients.

    Returns:
        The data with these clients, models ``(j, d)`` of the new groups, and the reasons.
    """
    clients = list(seats.clients)
    home = list(seats.home)
    vectors = seats.vectors
    notes = []
    new_groups: list[list[Client]] = []
    late_vectors = rule.vectors(seats.first, replies.all_updates)
    for client, vector in zip(replies.clients, late_vectors, strict=True):
        # The most similar client placed so far: its group, or a new one if it is not similar enough.
        similarities = closeness(vector, vectors)
        most_similar = int(similarities.argmax())
        note = _joined(rule, client, clients[most_similar], float(similarities[most_similar]))
        if all(criterion.held for criterion in note.criteria):
            group = home[most_similar]
        else:
            group = groups + len(new_groups)
            new_groups.append([])
        if group >= groups:
            new_groups[group - groups].append(client)
        notes.append(note)
        # The new vector replaces the client's older one, if there is one.
        kept = [i for i, earlier in enumerate(clients) if earlier != client]
        clients = [clients[i] for i in kept] + [client]
        home = [home[i] for i in kept] + [group]
        vectors = torch.cat([vectors[kept], vector[None]])
    models = seats.first.new_zeros(0, len(seats.first))
    if new_groups:
        models = torch.stack([_mean(seats.first, replies, group) for group in new_groups])
    seats = replace(seats, clients=tuple(clients), home=tuple(home), vectors=vectors)
    return seats, models, tuple(notes)


def _joined(rule: Rule, client: Client, like: Client, similarity: float) -> Note:
    """The note of a late client, which joins the group of the most similar client if its criteria hold."""
    whom = "its own earlier model" if like == client else f"client {like}"
    joins = "it joins that group"
    founds = "it starts a new group"
    criteria = rule.criteria("nearest_client", similarity, ">", met=joins, unmet=founds)
    held = all(criterion.held for criterion in criteria)
    text = f"client {client} is most similar to {whom}, cosine {similarity:.3g}, {rule.words()}: {joins if held else founds}"
    return Note(
        kind="join",
        effect="joins",
        clients=(client,),
        text=text,
        numbers={"similarity": similarity},
        labels={"like": like},
        criteria=criteria,
        otherwise=f"it would have {'started a new group' if held else 'joined that group'}",
    )
