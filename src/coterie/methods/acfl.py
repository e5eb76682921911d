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
from itertools import chain
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
    NOT_STORED,
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
from coterie.methods._decisions import (
    cut_in_words,
    cut_rule_in_words,
    merges_at_cut,
    missed_quorum,
)
from coterie.methods._leavers import entries_without
from coterie.methods._presets import Presets
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
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)

    @property
    def groups(self) -> tuple[tuple[int, tuple[Client, ...]], ...]:
        """(number, members) of every group that has members."""
        members_of: dict[int, tuple[Client, ...]] = {}
        for client, group_number in sorted(self.home.items()):
            members_of[group_number] = (*members_of.get(group_number, ()), client)
        return tuple(sorted(members_of.items()))


@dataclass(frozen=True, kw_only=True)
class ACFL:
    """One clustering by the dense layers after a brief training, then each client's model mixed with its cluster's."""

    name: ClassVar[str] = "acfl"

    # The paper's threshold, and the epochs of its figure 3; it gives no λ and no linkage.
    presets: ClassVar[Presets] = {
        "paper": {
            "pretrain_epochs": 2,
            "similarity": "weights",
            "threshold": 0.9,
        }
    }

    pretrain_epochs: int = setting(
        2, "epochs of training before the clustering (E)", ge=1, only_with={"cluster": (True,)}
    )
    threshold: float | None = setting(
        0.9,
        "merge while the cosine similarity is above this (t)",
        ge=-1,
        le=1,
        only_with={"cluster": (True,)},
    )
    groups: int | None = setting(
        None, "number of groups, instead of threshold", ge=1, only_with={"cluster": (True,)}
    )
    linkage: str = setting(
        "average",
        "linkage of the clustering; not in the paper",
        choices=("single", "complete", "average"),
        only_with={"cluster": (True,)},
    )
    similarity: str = setting(
        "weights",
        "what is compared: weights (the paper) or updates (not in the paper)",
        choices=("weights", "updates"),
        only_with={"cluster": (True,)},
    )
    layers: tuple[str, ...] = setting(
        (),
        "names of the layers compared; empty: the fully-connected ones",
        only_with={"cluster": (True,)},
    )
    mixing: float = setting(
        0.25,
        "weight of a client's own model in its personal model (λ)",
        ge=0,
        le=1,
        only_with={"mixing_per_client": ((),)},
    )
    mixing_per_client: tuple[float, ...] = setting(
        (), "λ of each client, in the order of their ids; empty: mixing for all", ge=0, le=1
    )
    cluster: bool = setting(
        True, "false: no clustering, one group of all clients (the paper's baseline)"
    )
    fraction: float = setting(
        1.0,
        "fraction of each group's clients sampled in a round, at least one; not in the paper",
        gt=0,
        le=1,
    )
    quorum: float = setting(
        0.5,
        "minimum fraction of the clients that must answer before clustering; not in the paper",
        gt=0,
        le=1,
        only_with={"cluster": (True,)},
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
        first_model = federation.draw(0)
        if self.groups is not None and self.groups > len(clients):
            raise SettingError(
                f"ACFL.groups must be at most the {len(clients)} clients, got {self.groups}"
            )
        if self.mixing_per_client and len(self.mixing_per_client) != len(clients):
            raise SettingError(
                f"ACFL.mixing_per_client must have one number for each of the {len(clients)} clients, "
                f"got {len(self.mixing_per_client)}; ACFL.mixing is one number for all"
            )
        # One group of all clients, until they are clustered.
        return ACFLState(
            round=0,
            centres=first_model[None],
            home=dict.fromkeys(clients, 0),
            own=first_model.new_zeros(0, len(first_model)),
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
        # A round: every client trains from the model that serves it.
        models, row_of_client = self._served(state)
        asked_clients: list[Client] = []
        for _, members in state.groups:
            asked_clients += cohort.sample(members, self.fraction)
        tasks = {client: Task(offered=(row_of_client[client],)) for client in sorted(asked_clients)}
        # Late clients train as in the clustering exchange, from the same model.
        late_clients = sorted(set(state.waiting) & set(cohort.present))
        if late_clients and state.seats is not None:
            task = Task(
                offered=(len(models) - 1,), epochs=self.pretrain_epochs, lr_round=state.seats.round
            )
            tasks.update(dict.fromkeys(late_clients, task))
        # Without mixing and late clients, no single update is needed.
        has_mixing = any(self._mixing(state, client) != 0 for client in state.home)
        mean_is_enough = not late_clients and not has_mixing
        return Plan(models=models, tasks=tasks, need="mean" if mean_is_enough else "rows")

    def step(self, state: ACFLState, replies: Replies) -> ACFLState:
        if self._clusters_now(state):
            return self._cluster(state, replies)
        new_state = self._train(state, replies)
        new_state = self._place(new_state, replies)
        return replace(new_state, round=state.round + 1)

    def assignment(self, state: ACFLState) -> Assignment:
        models, row_of_client = self._served(state)
        groups = [members for _, members in state.groups]
        if state.waiting:
            groups.append(state.waiting)
        return Assignment(models=models, row=row_of_client, groups=as_groups(groups))

    def explain(self, state: ACFLState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: ACFLState, clients: tuple[Client, ...]) -> ACFLState:
        # Before the clustering, newcomers are in the one group; after it, they wait for a group.
        newcomers = set(clients) - set(state.home) - set(state.waiting)
        if state.seats is None:
            return replace(state, home={**state.home, **dict.fromkeys(sorted(newcomers), 0)})
        return replace(state, waiting=tuple(sorted(newcomers.union(state.waiting))))

    def retire(self, state: ACFLState, clients: tuple[Client, ...]) -> ACFLState:
        """Remove clients; their data in ``seats`` stay, so that on return they are likely to find their group."""
        leavers = set(clients)
        trained, trained_models = rows_without(state.trained, state.own, leavers)
        return replace(
            state,
            home=entries_without(state.home, leavers),
            trained=trained,
            own=trained_models,
            waiting=without(state.waiting, leavers),
        )

    # -- rounds
    # ---------------------------------------------------------------------------------------------------------

    def _mixing(self, state: ACFLState, client: Client) -> float:
        """λ of a client."""
        return state.mixing.get(client, self.mixing)

    def _served(self, state: ACFLState) -> tuple[torch.Tensor, dict[Client, int]]:
        """The groups' models, then the mixed models, then the model of waiting clients; and client -> row."""
        # λ h_k + (1 - λ) h_c of each client that has a model h_k.
        lambdas = [self._mixing(state, client) for client in state.trained]
        mixing = torch.tensor(lambdas).to(state.own)[:, None]
        # The model h_c of each of these clients' groups.
        centres = state.centres[[state.home[client] for client in state.trained]]
        mixed_models = mixing * state.own + (1 - mixing) * centres
        models = torch.cat([state.centres, mixed_models])
        # Clients without a group get the model from which they train when they are present.
        if state.seats and state.waiting:
            models = torch.cat([models, state.seats.first[None]])
        # Members without a model h_k get their group's model.
        row_of_client = dict(state.home)
        for position, client in enumerate(state.trained):
            row_of_client[client] = len(state.centres) + position
        row_of_client.update(dict.fromkeys(state.waiting, len(models) - 1))
        return models, row_of_client

    def _train(self, state: ACFLState, replies: Replies) -> ACFLState:
        """A round of clients with a group: h_c is the mean of the h_k received, and h_k is kept where λ > 0."""
        state = replace(state, notes=())
        # λ = 0 for all clients: the engine has averaged the updates.
        if replies.updates is None:
            mean_updates = 0.0 if replies.means is None else replies.means[: len(state.centres)]
            return replace(state, centres=state.centres + mean_updates)
        member_replies = replies.of(state.home)
        if not member_replies.clients:
            return state
        # h_k: the model that served the client, and its update.
        models, row_of_client = self._served(state)
        start_rows = [row_of_client[client] for client in member_replies.clients]
        trained_models = models[start_rows] + member_replies.all_updates
        # h_c = Σ (|D_k| / |D_c|) h_k over the members that answered.
        centres = state.centres.clone()
        for group, members in state.groups:
            group_replies = member_replies.of(members)
            if group_replies.clients:
                group_models = trained_models[member_replies.positions(members)]
                data_weights = weights(group_replies, "data")
                centres[group] = group_replies.averaging.around(
                    centres[group], group_models, data_weights
                )
        # The h_k that are mixed in later, the new ones after those of absent clients. λ is zero for
        # the other clients.
        mixed_clients = [
            client for client in member_replies.clients if self._mixing(state, client) > 0
        ]
        absent, absent_models = rows_without(state.trained, state.own, mixed_clients)
        mixed_models = trained_models[member_replies.positions(mixed_clients)]
        return replace(
            state,
            centres=centres,
            trained=(*absent, *mixed_clients),
            own=torch.cat([absent_models, mixed_models]),
        )

    # -- the clustering
    # -------------------------------------------------------------------------------------------------

    def _clusters_now(self, state: ACFLState) -> bool:
        """Whether the next exchange is the clustering exchange; after too few replies, a round comes first."""
        return self.cluster and state.seats is None and state.missed != state.round

    def _rule(self, state: ACFLState) -> Rule:
        """The rule of the clustering, from the settings."""
        return Rule(
            threshold=self.threshold,
            groups=self.groups,
            linkage=self.linkage,
            updates=self.similarity == "updates",
            columns=state.columns,
            compared=state.compared,
        )

    def _cluster(self, state: ACFLState, replies: Replies) -> ACFLState:
        """The clustering exchange: the clients that answered are clustered, unless they are too few."""
        clients = tuple(sorted(state.home))
        quorum_note = missed_quorum(clients, len(replies.clients), self.quorum)
        if quorum_note is not None:
            return replace(state, missed=state.round, notes=(quorum_note,))
        # Clients that were silent wait until they answer.
        late_clients = tuple(sorted(set(clients) - set(replies.clients)))
        references, centres, note = clustered(
            self._rule(state), state.round, state.centres[0], replies, late_clients
        )
        return replace(
            state,
            seats=references,
            centres=centres,
            home=dict(zip(references.clients, references.home, strict=True)),
            waiting=late_clients,
            trained=(),
            own=state.own[:0],
            notes=(note,),
        )

    def _place(self, state: ACFLState, replies: Replies) -> ACFLState:
        """Place the waiting clients that answered."""
        late_replies = replies.of(state.waiting)
        if not late_replies.clients or state.seats is None:
            return state
        references, new_models, notes = placed(
            self._rule(state), state.seats, len(state.centres), late_replies
        )
        # Each late client that answered is now a member of a group.
        home = dict(state.home)
        newly_placed = set(late_replies.clients)
        for client, group_number in zip(references.clients, references.home, strict=True):
            if client in newly_placed:
                home[client] = group_number
        return replace(
            state,
            seats=references,
            centres=torch.cat([state.centres, new_models]),
            notes=notes,
            home=home,
            waiting=without(state.waiting, late_replies.clients),
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

    def rows(self, first_model: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        """Return the compared updates or weights ``(n, d)`` of clients that trained from ``first_model``."""
        return updates if self.updates else first_model + updates

    def vectors(self, first_model: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        """Return the updates or weights in the compared layers, ``(n, p)``; a copy."""
        layer_columns = [self.columns[layer] for layer in self.compared]
        compared_rows = self.rows(first_model, updates)
        return torch.cat([compared_rows[:, start:stop] for start, stop in layer_columns], dim=1)

    def criteria(
        self, key: str, similarity: float, sign: Sign, met: str, unmet: str = ""
    ) -> tuple[Criterion, ...]:
        """The comparison of a similarity with the threshold, above which clients merge; none without a threshold."""
        if self.threshold is None:
            return ()
        # The key of the criterion is its name with underscores.
        criterion_name = f"similarity of the {key.replace('_', ' ')}"
        criterion = Criterion(
            criterion_name, similarity, sign, self.threshold, "threshold", met, unmet, key
        )
        return (criterion,)

    def words(self) -> str:
        """Return the rule as text for notes."""
        return cut_rule_in_words(self.threshold, self.groups)


def layers_compared(
    federation: Federation, named_layers: tuple[str, ...], needed: bool
) -> tuple[str, ...]:
    """Return the layers to compare, in the model's order.

    Args:
        federation: the layers of the model.
        named_layers: names of layers; empty for the fully-connected layers.
        needed: whether there must be at least one layer.

    Raises:
        SettingError: the model does not have a named layer, or there is no layer though one is
            needed.
    """
    # Messages list the layers that there are.
    layer_names = ", ".join(federation.columns)
    # A name that the model does not have, with the nearest one that it has.
    for layer in named_layers:
        if layer not in federation.columns:
            nearest_hint = nearest(layer, federation.columns)
            raise SettingError(
                f"ACFL.layers: the model has no layer {layer!r}{nearest_hint} (layers: {layer_names})"
            )
    if needed and not (named_layers or federation.dense):
        raise SettingError(
            f"ACFL.layers is empty, which means the fully-connected layers, and the model has none; "
            f"name some of {layer_names}"
        )
    compared_layers = set(named_layers or federation.dense)
    return tuple(layer for layer in federation.columns if layer in compared_layers)


def clustered(
    rule: Rule,
    round: int,
    first_model: torch.Tensor,
    replies: Replies,
    late_clients: tuple[Client, ...],
) -> tuple[ClusterReferences, torch.Tensor, Note]:
    """Cluster the clients that answered.

    Args:
        rule: the rule of the clustering.
        round: number of rounds completed.
        first_model: ``(d,)``, the model that the clients trained from.
        replies: replies of the exchange.
        late_clients: clients that were silent.

    Returns:
        The data for placing late clients, the models ``(k, d)`` of the groups (line 9 of the
        algorithm), and the reasons.
    """
    # Agglomerative clustering by cosine similarity of the compared layers.
    layer_products = layer_grams(rule.rows(first_model, replies.all_updates), rule.columns)
    compared_cosines = cosine(np.sum([layer_products[layer] for layer in rule.compared], axis=0))
    group_of_reply, heights = _labels(rule, compared_cosines)
    groups = []
    for positions in groups_of(group_of_reply):
        groups.append([replies.clients[position] for position in positions])
    # Line 9: the model of a group is the data-weighted mean of its clients' models.
    models = torch.stack([_mean(first_model, replies, group) for group in groups])
    # Late clients are compared with these clients, which trained from the same model.
    references = ClusterReferences(
        round=round,
        first=first_model,
        clients=replies.clients,
        home=tuple(group_of_reply.tolist()),
        vectors=rule.vectors(first_model, replies.all_updates),
    )
    # Notes contain the similarity of clients in every layer, and in the compared ones together.
    similarity = {}
    for layer, cosines in {**layer_cosines(layer_products), "compared": compared_cosines}.items():
        similarity[layer] = torch.from_numpy(cosines).float()
    note = _note(rule, groups, 1 - np.sort(heights), late_clients)
    return references, models, replace(note, heard=replies.clients, similarity=similarity)


def _labels(rule: Rule, similarities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(label of each client, numbered by first member; heights of the merges), from similarities ``(n, n)``."""
    merges = dendrogram(1 - similarities, rule.linkage)
    # The paper's threshold is a similarity, and a dendrogram is cut at a distance.
    threshold = None if rule.threshold is None else 1 - rule.threshold
    num_groups = None if rule.groups is None else min(rule.groups, len(similarities))
    return cut_dendrogram(merges, threshold=threshold, groups=num_groups), merges[:, 2]


def _mean(first_model: torch.Tensor, replies: Replies, clients: list[Client]) -> torch.Tensor:
    """The data-weighted mean of the models that ``clients`` trained from the first model."""
    member_replies = replies.of(clients)
    models = first_model + member_replies.all_updates
    return member_replies.averaging.around(first_model, models, weights(member_replies, "data"))


def _note(
    rule: Rule,
    clusters: list[list[Client]],
    similarities: np.ndarray,
    late_clients: tuple[Client, ...],
) -> Note:
    """Describe the cut, given the similarity of each merge, the greatest first."""
    merge_numbers = merges_at_cut(similarities, len(clusters))
    # The last merge was above the threshold, and the next one would not have been.
    criteria: tuple[Criterion, ...] = ()
    if "last_merge" in merge_numbers:
        last_merge = merge_numbers["last_merge"]
        criteria += rule.criteria("last_merge", last_merge, ">", met="two groups merged")
    if "next_merge" in merge_numbers:
        next_merge = merge_numbers["next_merge"]
        criteria += rule.criteria("next_merge", next_merge, "<=", met="no merge")
    compared = "updates" if rule.updates else "weights"
    layer_list = ", ".join(layer or "the only layer" for layer in rule.compared)
    description = (
        f"{rule.linkage} linkage of the cosine similarity of {compared} in {layer_list}, {rule.words()}: "
        f"similarity {cut_in_words(merge_numbers, len(clusters))}"
    )
    if late_clients:
        description += f"; {len(late_clients)} clients without an answer wait in a separate group"
    groups = as_groups([*clusters, late_clients] if late_clients else clusters)
    return Note(
        kind="cluster" if len(groups) > 1 else "keep",
        effect="divides" if len(groups) > 1 else "keeps",
        clients=tuple(sorted(chain.from_iterable(groups))),
        text=description,
        parts=groups,
        numbers={"groups": float(len(clusters)), **merge_numbers},
        criteria=criteria,
        otherwise="the groups would have been different",
    )


def placed(
    rule: Rule, references: ClusterReferences, num_groups: int, replies: Replies
) -> tuple[ClusterReferences, torch.Tensor, tuple[Note, ...]]:
    """Place late clients that trained from ``references.first``.

    A client with an older vector is compared with that vector too; then the new one replaces it.

    Args:
        rule: the rule of the clustering.
        references: data of the clients placed so far.
        num_groups: number of groups; new groups are numbered from there.
        replies: replies of the late clients.

    Returns:
        The data with these clients, models ``(j, d)`` of the new groups, and the reasons.
    """
    # All late clients have trained from this model, as the clients did that were clustered.
    first_model = references.first
    clients = list(references.clients)
    home_groups = list(references.home)
    vectors = references.vectors
    notes = []
    new_groups: list[list[Client]] = []
    late_vectors = rule.vectors(first_model, replies.all_updates)
    for client, vector in zip(replies.clients, late_vectors, strict=True):
        # The most similar client placed so far: its group, or a new one if it is not similar enough.
        similarities = closeness(vector, vectors)
        nearest_position = int(similarities.argmax())
        note = _join_note(
            rule, client, clients[nearest_position], float(similarities[nearest_position])
        )
        if all(criterion.held for criterion in note.criteria):
            group_number = home_groups[nearest_position]
        else:
            group_number = num_groups + len(new_groups)
            new_groups.append([])
        # Only new groups need their members: the other groups have a model already.
        if group_number >= num_groups:
            new_groups[group_number - num_groups].append(client)
        notes.append(note)
        # The new vector replaces the client's older one, if there is one.
        if client in clients:
            older_position = clients.index(client)
            del clients[older_position]
            del home_groups[older_position]
            vectors = torch.cat([vectors[:older_position], vectors[older_position + 1 :]])
        clients.append(client)
        home_groups.append(group_number)
        vectors = torch.cat([vectors, vector[None]])
    # Line 9 for the new groups.
    models = first_model.new_zeros(0, len(first_model))
    if new_groups:
        models = torch.stack([_mean(first_model, replies, group) for group in new_groups])
    references = replace(
        references, clients=tuple(clients), home=tuple(home_groups), vectors=vectors
    )
    return references, models, tuple(notes)


def _join_note(rule: Rule, client: Client, nearest_client: Client, similarity: float) -> Note:
    """The note of a late client, which joins the group of the most similar client if its criteria hold."""
    nearest_name = f"client {nearest_client}"
    if nearest_client == client:
        nearest_name = "its own earlier model"
    # Without a threshold there is no criterion, and the client joins in any case.
    joins_text = "it joins that group"
    founds_text = "it starts a new group"
    criteria = rule.criteria("nearest_client", similarity, ">", met=joins_text, unmet=founds_text)
    joins = all(criterion.held for criterion in criteria)
    description = (
        f"client {client} is most similar to {nearest_name}, cosine {similarity:.3g}, "
        f"{rule.words()}: {joins_text if joins else founds_text}"
    )
    return Note(
        kind="join",
        effect="joins",
        clients=(client,),
        text=description,
        numbers={"similarity": similarity},
        labels={"like": nearest_client},
        criteria=criteria,
        otherwise=f"it would have {'started a new group' if joins else 'joined that group'}",
    )
