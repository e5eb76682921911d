"""HCCT: in every epoch, clients are regrouped to maximise the sum of their utilities.

Y. Sun, M. Kountouris, J. Zhang, "How to Collaborate: Towards Maximizing the Generalization
Performance in Cross-Silo Federated Learning", arXiv 2401.13236: Algorithms 1 (training) and 2
(client partition), equations 8 to 20; the variants HCCT-E (section V, "efficient implementation")
and HCCT-P (section VII, with the personalisation layers of M. G. Arivazhagan et al., arXiv
1912.00818).

The utility of client n in group G is ``U_n(G) = cos(g_n, ḡ_G) - λ_n / N_G``; see
:mod:`coterie.clustering.utility`.

Deviations
- In a federation, or with adversaries, the limits of :mod:`coterie.robust` act first (ours).
- λ is a share of the mean training-set size by default (``scale``), because its scale is that of
  these sizes; the paper has one absolute number per data set. The paper's constant Γ cancels in
  every merge and is left out.
- Cosines use trainable parameters only, and the running statistics of BatchNorm are averaged like
  parameters. In the code published with the paper, counters of batches dominate the similarity, and
  a group has the statistics of client 0.
- HCCT-E uses the relative variance across clients of whole layers (``robust``). The published
  code's variance is over clients and coordinates together, and divided by a signed mean near zero
  (``paper-code``). The layer is chosen in the first epoch, which counts; the published code
  discards a round of probing. Normalisation layers are not candidates.
- HCCT-P compares the layers that are sent; heads never leave their client. The published code
  averages the heads of a group's members before each epoch.
- The reported utility is that of the merge. The published code's report counts a client's own data
  twice in a group.
- Cosines are means over epochs (``memory``), because near an optimum those of one epoch are noise.
  A newcomer's first update is compared with the first updates of the others. 0 is the paper's
  method.
- ``cosines="signals"`` asks for updates of two halves of every client's data, and removes the noise
  that they show from the squared norms (see :func:`noise_in`). These epochs cost twice the upload
  and make half the training steps. So groups are made only in every fourth epoch
  (``partition_every``), while a newcomer waits, and until all clients have answered once; in the
  other epochs means suffice. HCCT-E chooses its layer by whole updates, and the cosines of that
  epoch are those of whole updates.
- In the paper all clients take part in every epoch. Here the clients that answered are partitioned,
  together with those silent clients whose cosines with all of them are remembered. Each other
  client goes to the new group that has most of the data of its former group. Silent clients have
  the model of their group whenever it moves, and keep their weight in the first model of their next
  group.
- With ``one_shot`` all clients are asked in the first epoch. Clients that are silent in it are
  placed like newcomers.
- ``newcomers="benefit"`` follows the paper's text (equations 15 and 16); ``partition`` follows the
  published code. If a number of ``groups`` is set and reached, a newcomer joins the best of them
  even where nothing is gained.
- With a memory, a newcomer trains its first epoch with the learning rate of the federation's first
  epoch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.core import (
    NOT_STORED,
    Assignment,
    Client,
    Cohort,
    Feature,
    Federation,
    Groups,
    Needs,
    Note,
    Plan,
    Replies,
    Task,
    Training,
    as_groups,
    average,
    group_means,
    joined,
    state,
    without,
)
from coterie.methods._half_steps import of_equal_steps
from coterie.methods._hcct_layers import (
    Layers,
    comparable,
    layer_note,
    paper_code_ratios,
    relative_variances,
)
from coterie.methods._hcct_memory import Memory, forget, recall, remember, signal_in, with_firsts
from coterie.methods._hcct_notes import PartitionRule, join_note, partition_note
from coterie.methods._hcct_partition import EpochComparison, Group, follow
from coterie.methods._hcct_signals import (
    halves_products,
    noise_in,
    share_of_signal,
    update_products,
    without_noise,
)
from coterie.methods._leavers import entries_without, groups_without
from coterie.methods._presets import Presets
from coterie.settings import SettingError, check, setting


@state("hcct")
class HCCTState:
    """State of HCCT.

    Attributes:
        clients: all ids.
        first: ``(d,)``, the model that all clients start from.
        models: ``(k, d)``, the current models.
        row: client -> row of its current model.
        groups: groups of the last epoch.
        next: groups of the next epoch.
        parameters: number of trainable parameters, which are the first columns of a model.
        keep: layers that stay at the client.
        layers: layers that may be compared.
        sizes: training-set sizes of all clients that have ever answered.
        layer: the layer that is compared; None for all.
        partitioned: whether there has been a partition.
        waiting: clients to place when they next answer: newcomers, and with ``one_shot`` those
            silent in the partition.
        memory: the memory of cosines, if the method has one.
        epoch: number of completed epochs in which any client answered.
        training: the experiment's training settings.
        notes: notes of the last epoch.
    """

    clients: tuple[Client, ...]
    first: torch.Tensor
    models: torch.Tensor
    row: Mapping[Client, int]
    groups: Groups
    next: Groups
    parameters: int
    keep: tuple[str, ...]
    layers: Layers
    sizes: Mapping[Client, int] = field(default_factory=dict)
    layer: str | None = None
    partitioned: bool = False
    waiting: tuple[Client, ...] = ()
    memory: Memory | None = None
    epoch: int = 0
    training: Training = field(default_factory=Training)
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)

    @property
    def columns(self) -> slice:
        """The columns that cosines use; columns of layers that stay at the client are zero in every update."""
        if self.layer is None:
            return slice(0, self.parameters)
        spans = self.layers[self.layer]
        return slice(spans[0][0], spans[-1][1])


LAYERS = ("all", "robust", "paper-code")
_LAYER = "layers that cosines compare: all; or one, chosen after the first epoch: robust, or as in the paper-code"
_PERSONAL = "number of last layers that stay at their client (HCCT-P)"


@dataclass(frozen=True, kw_only=True)
class HCCT:
    """Groups clients anew in every epoch: merges them while more data outweigh their difference."""

    name: ClassVar[str] = "hcct"

    # The paper has no memory. λ is the default of the code published with it.
    presets: ClassVar[Presets] = {
        "paper": {
            "scale": "absolute",
            "tradeoff": 1.0,
            "memory": 0.0,
        }
    }

    tradeoff: float = setting(
        0.7,
        "penalty for little data (λ), on the chosen scale; 0: every client alone, inf: one group",
        ge=0,
    )
    scale: str = setting(
        "mean-size",
        "λ relative to the mean training-set size (not in the paper), or absolute, or relative to each client's own size",
        choices=("mean-size", "absolute", "per-client"),
        advanced=True,
        not_with={"tradeoff": (math.inf,)},
    )
    groups: int | None = setting(
        None, "number of groups, instead of merging while there is a gain", ge=1
    )
    one_shot: bool = setting(False, "partition once, after the first epoch", advanced=True)
    layer: str = setting("all", _LAYER, choices=LAYERS, advanced=True)
    personal: int = setting(0, _PERSONAL, ge=0, advanced=True)
    newcomers: str = setting(
        "benefit",
        "after a round alone, a new client joins the group of greatest benefit, or takes part in the next partition",
        choices=("benefit", "partition"),
        advanced=True,
    )
    memory: float = setting(
        0.95,
        "factor on an epoch's cosines in each later epoch (β); 0: no memory, as in the paper",
        ge=0,
        le=1,
        advanced=True,
        not_with={"one_shot": (True,), "tradeoff": (math.inf,)},
    )
    cosines: str = setting(
        "updates",
        "what cosines compare: updates, as in the paper; or their signals (not in the paper), from halves of clients' data",
        choices=("updates", "signals"),
        not_with={"tradeoff": (math.inf,)},
    )
    partition_every: int | None = setting(
        None,
        "epochs from one partition to the next; none: 1, as in the paper, or 4 with signals, to save cost",
        ge=1,
        advanced=True,
        not_with={"one_shot": (True,), "tradeoff": (math.inf,)},
    )
    fraction: float = setting(
        1.0,
        "fraction of each group's clients sampled in an epoch, at least one; not in the paper",
        gt=0,
        le=1,
    )
    sketch: int | None = setting(
        None,
        "compare sketches of this size; full updates are not kept; not in the paper",
        multiple=4,
        advanced=True,
        not_with={"tradeoff": (math.inf,)},
    )

    def __post_init__(self) -> None:
        check(self)
        if self.groups is not None and np.isinf(self.tradeoff):
            raise SettingError(
                f"{type(self).__name__}.groups {self.groups} needs a finite tradeoff, got inf, which is one group"
            )

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine; the published code's choice of a layer depends on signs."""
        features: list[Feature] = []
        if self.personal:
            features.append("local-layers")
        if self.cosines == "signals" and not np.isinf(self.tradeoff):
            features.append("halves")
        return Needs(
            features=tuple(features),
            occasional=("training",),
            unchanged_by="nothing" if self.layer == "paper-code" else "rotation",
            fraction=self.fraction,
        )

    # -- the contract
    # ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> HCCTState:
        method_name = type(self).__name__
        clients = federation.clients
        layer_names = tuple(federation.columns)
        if self.groups is not None and self.groups > len(clients):
            raise SettingError(
                f"{method_name}.groups must be at most the {len(clients)} clients, got {self.groups}"
            )
        if self.personal > len(layer_names):
            raise SettingError(
                f"{method_name}.personal must be at most the {len(layer_names)} layers of the model, got {self.personal}"
            )
        # HCCT-P: the last layers never leave their client.
        personal_layers = layer_names[len(layer_names) - self.personal :]
        # Algorithm 1 starts with one group of all clients, because there are no updates yet.
        first_model = federation.draw(0)
        return HCCTState(
            clients=clients,
            first=first_model,
            models=first_model[None],
            row=dict.fromkeys(clients, 0),
            groups=(clients,),
            next=(clients,),
            parameters=federation.parameters.stop,
            keep=personal_layers,
            layers={} if self.layer == "all" else comparable(federation, personal_layers),
            training=federation.training,
        )

    def plan(self, state: HCCTState, cohort: Cohort) -> Plan:
        # Algorithm 1: the clients of each group train from the group's model. If the groups are made
        # anew after this epoch, the server compares their updates, or signals from halves.
        compares = not (np.isinf(self.tradeoff) or self._keeps_groups(state))
        chooses_layer = self.chooses_layer(state)
        first_time_clients = set(self._remembered_firsts(state))
        task = Task(offered=(0,), local_layers=state.keep)
        if self.cosines == "signals" and compares and not chooses_layer:
            training = of_equal_steps(state.training, state.sizes.values())
            task = replace(task, halves=True, training=training)
        # The one partition of `one_shot` is among all clients, so all are asked for it.
        fraction = 1.0 if self.one_shot and not state.partitioned else self.fraction
        tasks = {}
        for group_row, group in enumerate(state.next):
            # A first update is compared with those of the first epoch, so it needs that epoch's
            # learning rate.
            is_first_update = first_time_clients.issuperset(group)
            group_task = replace(
                task, offered=(group_row,), lr_round=0 if is_first_update else None
            )
            tasks.update(dict.fromkeys(cohort.sample(group, fraction), group_task))
        models = starts(state)
        # HCCT-E measures the variance of every layer before it chooses one, so it needs whole updates.
        if chooses_layer:
            return Plan(models=models, tasks=tasks, need="rows")
        if not compares:
            return Plan(models=models, tasks=tasks, need="mean")
        # A Gram matrix is enough for cosines, but first updates are remembered as sketches.
        need: Literal["rows", "gram"] = "rows" if first_time_clients else "gram"
        return Plan(
            models=models, tasks=tasks, need=need, columns=state.columns, sketch=self.sketch
        )

    def step(self, state: HCCTState, replies: Replies) -> HCCTState:
        if not replies.clients:
            return replace(state, notes=())
        # HCCT-E chooses its layer first, by the updates of this epoch.
        state, notes = self._with_layer(state, replies)
        # Both look at the state before training: who trained from the first model, and what was due.
        first_time_clients = self._remembered_firsts(state)
        keeps_groups = self._keeps_groups(state)
        # Algorithm 1: every group's model takes the group's mean update.
        state = replace(trained(state, replies), epoch=state.epoch + 1)
        if keeps_groups:
            return replace(state, notes=notes)
        # Algorithm 2: the clients are partitioned for the next epoch.
        state, comparison = self.compare(state, replies, first_time_clients)
        return self.regroup(state, comparison, notes)

    def assignment(self, state: HCCTState) -> Assignment:
        return Assignment(models=state.models, row=state.row, groups=state.groups)

    def explain(self, state: HCCTState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: HCCTState, clients: tuple[Client, ...]) -> HCCTState:
        """Admit clients; each newcomer trains from the first model, alone in its group."""
        newcomers = tuple(sorted(set(clients) - set(state.clients)))
        single_groups = [(client,) for client in newcomers]
        return replace(
            _from_the_first(state, newcomers),
            clients=joined(state.clients, newcomers),
            groups=as_groups([*state.groups, *single_groups]),
            next=as_groups([*state.next, *single_groups]),
            waiting=tuple(sorted((*state.waiting, *newcomers))),
        )

    def retire(self, state: HCCTState, clients: tuple[Client, ...]) -> HCCTState:
        leavers = set(clients)
        remaining = without(state.clients, leavers)
        return replace(
            state,
            clients=remaining,
            row={client: state.row[client] for client in remaining},
            groups=groups_without(state.groups, leavers),
            next=groups_without(state.next, leavers),
            sizes=entries_without(state.sizes, leavers),
            waiting=without(state.waiting, leavers),
            memory=forget(state.memory, leavers),
        )

    # -- in one step
    # ----------------------------------------------------------------------------------------------------

    def settled(self, state: HCCTState) -> bool:
        """Return whether the only partition has been made; it is made again if all of its clients have left."""
        return self.one_shot and state.partitioned and state.waiting != state.clients

    def _keeps_groups(self, state: HCCTState) -> bool:
        """Whether the next epoch keeps its groups: no partition is due, no client waits, and all have answered once."""
        if state.waiting:
            return False
        if self.settled(state):
            return True
        # With signals, an epoch with a partition costs twice the upload, so there are fewer of them.
        period = self.partition_every or (1 if self.cosines == "updates" else 4)
        partition_is_due = (
            not state.partitioned
            or state.epoch % period == 0
            or not state.sizes.keys() >= set(state.clients)
        )
        return not partition_is_due

    def chooses_layer(self, state: HCCTState) -> bool:
        """Return whether the layer to compare is yet to be chosen."""
        return (
            self.layer != "all"
            and state.layer is None
            and bool(state.layers)
            and not np.isinf(self.tradeoff)
        )

    def _with_layer(self, state: HCCTState, replies: Replies) -> tuple[HCCTState, tuple[Note, ...]]:
        """HCCT-E: choose the layer whose updates differ most between clients, once two or more have answered (eq. 19)."""
        if not self.chooses_layer(state) or len(replies.clients) < 2:
            return state, ()
        layer_ratios = relative_variances if self.layer == "robust" else paper_code_ratios
        ratio_of_layer = layer_ratios(replies.all_updates, state.layers)
        note = layer_note(state.clients, ratio_of_layer, self.layer)
        return replace(state, layer=max(ratio_of_layer, key=lambda layer: ratio_of_layer[layer])), (
            note,
        )

    def _remembered_firsts(self, state: HCCTState) -> tuple[Client, ...]:
        """The clients whose next update will be remembered as their first."""
        if not self.memory or np.isinf(self.tradeoff):
            return ()
        return beginners(state)

    def compare(
        self, state: HCCTState, replies: Replies, first_time_clients: tuple[Client, ...]
    ) -> tuple[HCCTState, EpochComparison]:
        """Compute what the next partition depends on.

        Args:
            state: the state after training.
            replies: replies of the epoch.
            first_time_clients: clients whose update was their first.

        Returns:
            The state with an updated memory, and the data for the partition.
        """
        clients = replies.clients
        gram_matrix = None
        signal_share = 1.0
        if not np.isinf(self.tradeoff):
            # Sketches contain only the columns that the plan named.
            columns = state.columns
            if replies.updates is not None and replies.means is not None:
                columns = slice(0, replies.updates.shape[1])
            gram_matrix = update_products(replies, columns)
            noise = noise_in(gram_matrix, halves_products(replies))
            signal_share = share_of_signal(gram_matrix.diagonal(), noise)
            # While HCCT-E still looks for its layer, products are of other columns than later ones, and
            # are not remembered.
            if self.memory and not self.chooses_layer(state):
                memory = remember(state.memory, clients, gram_matrix, self.memory, noise)
                first_replies = replies.of(first_time_clients)
                sketch_size = self.sketch if replies.means is None else None
                memory = with_firsts(memory, first_replies, columns, sketch_size)
                state = replace(state, memory=memory)
                # From here on, also the silent clients whose cosines are remembered are compared.
                clients, gram_matrix = recall(memory, clients)
                signal_share = signal_in(memory, clients)
            if self.cosines == "signals":
                gram_matrix = without_noise(gram_matrix, signal_share)
        sizes = np.array([state.sizes[client] for client in clients], dtype=np.float64)
        comparison = EpochComparison(
            answered=replies.clients,
            clients=clients,
            gram=gram_matrix,
            sizes=sizes,
            tradeoffs=self._tradeoffs(sizes, state.sizes.values()),
            signal_share=signal_share,
            hostile=replies.averaging.hostile,
        )
        return state, comparison

    def _tradeoffs(self, sizes: np.ndarray, known_sizes: Collection[int]) -> np.ndarray:
        """Return λ of each client, ``(n,)``, on the chosen scale.

        Args:
            sizes: ``(n,)``, their training-set sizes.
            known_sizes: the sizes of all clients that have ever answered.
        """
        match self.scale:
            case "per-client":
                size_unit = sizes
            case "mean-size":
                size_unit = np.ones(len(sizes)) * np.mean(list(known_sizes))
            case _:
                size_unit = np.ones(len(sizes))
        return np.asarray(self.tradeoff * size_unit)

    def regroup(
        self, state: HCCTState, comparison: EpochComparison, notes: tuple[Note, ...]
    ) -> HCCTState:
        """Make the groups of the next epoch: partition the clients that can be compared, add the others, then newcomers.

        Args:
            state: the state after training.
            comparison: the data for the partition.
            notes: notes of the epoch so far.
        """
        settled = self.settled(state)
        answered = set(comparison.answered)
        # Newcomers that are placed one by one do not take part in the partition, and are placed in the
        # epoch in which they answer.
        places_singly = (settled or self.newcomers == "benefit") and state.waiting != state.clients
        unplaced = state.waiting if places_singly else ()
        newcomers = [client for client in unplaced if client in answered]
        to_partition = without(comparison.clients, unplaced)
        # Clients that are silent in the only partition start again later, as newcomers do.
        missed: set[Client] = set()
        if self.one_shot and not state.partitioned and to_partition:
            missed = set(state.clients) - answered
        absent_clients = missed.union(newcomers)
        former_groups = [list(without(group, absent_clients)) for group in state.next]

        # Algorithm 2, and the clients that cannot be compared follow their former group.
        if settled:
            groups = [group for group in former_groups if group]
        else:
            merged_groups = comparison.partition(to_partition, self.groups)
            groups = follow(merged_groups, former_groups, state.sizes)
        if missed:
            state = _from_the_first(state, missed)
            for client in sorted(missed):
                groups.append([client])

        # Equations 15 and 16: newcomers join groups. Who took part in the partition waits no longer.
        waiting = missed | (set(state.waiting) - (answered - set(newcomers)))
        join_notes = []
        for client in newcomers:
            note, is_placed = self._placed(comparison, groups, client)
            join_notes.append(note)
            if is_placed:
                waiting.discard(client)
        state = replace(
            state,
            next=as_groups(groups),
            partitioned=state.partitioned or bool(to_partition),
            waiting=tuple(sorted(waiting)),
        )
        rule = PartitionRule(
            tradeoff=self.tradeoff,
            group_count=self.groups,
            settled=settled,
            layer=state.layer,
            signals=self.cosines == "signals",
        )
        note = partition_note(rule, comparison, state.clients, state.groups, state.next)
        return replace(state, notes=(*notes, *join_notes, note))

    def _placed(
        self, comparison: EpochComparison, groups: list[Group], newcomer: Client
    ) -> tuple[Note, bool]:
        """Add a newcomer to the group that benefits most from it, or as a new group.

        Args:
            comparison: the data for the partition.
            groups: the groups so far, to which the newcomer is added.
            newcomer: the newcomer.

        Returns:
            The reasons, and whether it has been placed; if not, it is alone until it can be compared.
        """
        best_group = comparison.best_group(groups, newcomer)
        # A number of groups that is asked for is not exceeded.
        is_full = self.groups is not None and len(groups) >= self.groups
        note = join_note(newcomer, groups, best_group, is_full)
        if best_group is not None and all(criterion.held for criterion in note.criteria):
            group_number, _ = best_group
            groups[group_number].append(newcomer)
        else:
            groups.append([newcomer])
        return note, best_group is not None


@dataclass(frozen=True, kw_only=True)
class HCCTE(HCCT):
    """HCCT that compares one layer alone: the one whose first updates differ most between clients."""

    name: ClassVar[str] = "hcct-e"

    # As HCCT; the published code computes the variances of layers in another way.
    presets: ClassVar[Presets] = {
        **HCCT.presets,
        "paper-code": {
            **HCCT.presets["paper"],
            "layer": "paper-code",
            "newcomers": "partition",
        },
    }

    layer: str = setting("robust", _LAYER, choices=LAYERS, advanced=True)


@dataclass(frozen=True, kw_only=True)
class HCCTP(HCCT):
    """HCCT whose clients keep their last layer to themselves: groups share what is below it."""

    name: ClassVar[str] = "hcct-p"

    personal: int = setting(1, _PERSONAL, ge=0)


# ----------------------------------------------------------------------------------------------------
# Training (Algorithm 1, equations 3 and 6): a group's first model, and its mean update.


def starts(state: HCCTState) -> torch.Tensor:
    """Return the first models of the next epoch's groups, ``(k, d)``: means of the members' models, weighted by data."""
    if not state.next:
        return state.first[None]
    return torch.stack([_start(state, group) for group in state.next])


def _start(state: HCCTState, group: tuple[Client, ...]) -> torch.Tensor:
    # Each model counts by the data of the members that have it (Algorithm 1).
    examples_of_row: dict[int, int] = {}
    for client in group:
        model_row = state.row[client]
        examples_of_row[model_row] = examples_of_row.get(model_row, 0) + state.sizes.get(client, 0)
    weights = {model_row: examples for model_row, examples in examples_of_row.items() if examples}
    # Sizes are known from replies. Before the first one, all models count equally.
    if not weights:
        weights = dict.fromkeys(examples_of_row, 1)
    if len(weights) == 1:
        return state.models[next(iter(weights))]
    shares = np.array(list(weights.values())) / sum(weights.values())
    return average(state.models[list(weights)], shares)


def beginners(state: HCCTState) -> tuple[Client, ...]:
    """Return the clients that train from the first model in the next epoch: all in the first epoch, newcomers later."""
    candidates = state.waiting if state.sizes else state.clients
    has_first_model: dict[int, bool] = {}
    beginning = []
    for client in candidates:
        model_row = state.row[client]
        # Many clients may have one model, which is compared once.
        if model_row not in has_first_model:
            has_first_model[model_row] = torch.equal(state.models[model_row], state.first)
        if has_first_model[model_row]:
            beginning.append(client)
    return tuple(beginning)


def trained(state: HCCTState, replies: Replies) -> HCCTState:
    """Apply the mean update of each group that answered, also for its silent members; the other groups' models stay."""
    if replies.means is not None and replies.mean_counts is not None:
        mean_updates = replies.means
        reply_counts = replies.mean_counts
    else:
        mean_updates, reply_counts = group_means(replies, state.next)
    # Equation 6: the group's first model plus its mean update. All members have the result.
    moved_groups = np.flatnonzero(reply_counts)
    row_of_client: dict[Client, int] = {}
    for group_row, group_number in enumerate(moved_groups):
        row_of_client.update(dict.fromkeys(state.next[group_number], group_row))
    moved_models = (starts(state) + mean_updates)[moved_groups]
    # Clients of the other groups keep the models that they have, in the rows below.
    unmoved_clients = without(state.clients, row_of_client)
    kept_rows = sorted({state.row[client] for client in unmoved_clients})
    new_row_of = dict(zip(kept_rows, count(len(moved_groups)), strict=False))
    for client in unmoved_clients:
        row_of_client[client] = new_row_of[state.row[client]]
    answered_sizes = zip(replies.clients, map(int, replies.examples), strict=True)
    return replace(
        state,
        models=torch.cat([moved_models, state.models[kept_rows]]),
        row={client: row_of_client[client] for client in state.clients},
        groups=state.next,
        sizes={**state.sizes, **dict(answered_sizes)},
    )


def _from_the_first(state: HCCTState, clients: Iterable[Client]) -> HCCTState:
    """Give the first model to ``clients``."""
    return replace(
        state,
        models=torch.cat([state.models, state.first[None]]),
        row={**state.row, **dict.fromkeys(clients, len(state.models))},
    )
