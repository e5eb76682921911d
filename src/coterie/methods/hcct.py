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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.clustering import benefit, benefits, cosine, gram, sketch, utility, utility_merge
from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Criterion,
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
from coterie.methods._leavers import entries_without, groups_without
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
    notes: tuple[Note, ...] = ()

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
    """In every epoch, the groups whose members gain most from each other: data against unlikeness."""

    name: ClassVar[str] = "hcct"

    tradeoff: float = setting(
        0.7,
        "penalty for little data (λ), on the chosen scale; 0: every client alone, inf: one group",
        ge=0,
    )
    scale: str = setting(
        "mean-size",
        "λ relative to the mean training-set size (ours), or absolute, or relative to each client's own size",
        choices=("mean-size", "absolute", "per-client"),
        advanced=True,
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
        "factor on an epoch's cosines in each later epoch (β); 0: no memory, as in the paper; ours",
        ge=0,
        le=1,
        advanced=True,
    )
    cosines: str = setting(
        "updates",
        "what cosines compare: updates, as in the paper; or their signals, from halves of clients' data; ours",
        choices=("updates", "signals"),
    )
    partition_every: int | None = setting(
        None,
        "epochs from one partition to the next; none: 1, as in the paper, or 4 with signals, to save cost; ours",
        ge=1,
        advanced=True,
    )
    fraction: float = setting(
        1.0, "fraction of each group's clients sampled in an epoch, at least one; ours", gt=0, le=1
    )
    sketch: int | None = setting(
        None,
        "compare sketches of this size; full updates are not kept; ours",
        multiple=4,
        advanced=True,
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
        for row, group in enumerate(state.next):
            # A first update is compared with those of the first epoch, so it needs that epoch's
            # learning rate.
            is_first_update = first_time_clients.issuperset(group)
            group_task = replace(task, offered=(row,), lr_round=0 if is_first_update else None)
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
        ratios = layer_ratios(replies.all_updates, state.layers)
        note = layer_note(state.clients, ratios, self.layer)
        return replace(state, layer=max(ratios, key=lambda layer: ratios[layer])), (note,)

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
            gram_matrix = _products(replies, columns)
            noise = noise_in(gram_matrix, halves_products(replies))
            signal_share = share_of_signal(gram_matrix.diagonal(), noise)
            # While HCCT-E still looks for its layer, products are of other columns than later ones, and
            # are not remembered.
            if self.memory and not self.chooses_layer(state):
                memory = remember(state.memory, clients, gram_matrix, self.memory, noise)
                first_replies = replies.of(first_time_clients)
                sketch_size = self.sketch if replies.means is None else None
                memory = _with_firsts(memory, first_replies, columns, sketch_size)
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
                unit = sizes
            case "mean-size":
                unit = np.ones(len(sizes)) * np.mean(list(known_sizes))
            case _:
                unit = np.ones(len(sizes))
        return np.asarray(self.tradeoff * unit)

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
        to_partition = [client for client in comparison.clients if client not in unplaced]
        # Clients that are silent in the only partition start again later, as newcomers do.
        missed: set[Client] = set()
        if self.one_shot and not state.partitioned and to_partition:
            missed = set(state.clients) - answered
        former_groups = [
            [client for client in group if client not in newcomers and client not in missed]
            for group in state.next
        ]

        # Algorithm 2, and the clients that cannot be compared follow their former group.
        if settled:
            groups = [group for group in former_groups if group]
        else:
            merged_groups = comparison.partition(to_partition, self.groups)
            groups = follow(merged_groups, former_groups, state.sizes)
        if missed:
            state = _from_the_first(state, missed)
            groups = [*groups, *([client] for client in sorted(missed))]

        # Each newcomer joins the group that benefits most from it, or stays alone (eq. 15 and 16).
        waiting = missed | (set(state.waiting) - (answered - set(newcomers)))
        join_notes = []
        for client in newcomers:
            best_group = comparison.best_group(groups, client)
            # A number of groups that is asked for is not exceeded.
            is_full = self.groups is not None and len(groups) >= self.groups
            join_note = _join_note(client, groups, best_group, is_full)
            join_notes.append(join_note)
            if best_group is not None:
                waiting.discard(client)
            if best_group is not None and all(criterion.held for criterion in join_note.criteria):
                groups[best_group[0]].append(client)
            else:
                groups.append([client])

        state = replace(
            state,
            next=as_groups(groups),
            partitioned=state.partitioned or bool(to_partition),
            waiting=tuple(sorted(waiting)),
        )
        partition_note = self.partition_note(state, comparison, settled)
        return replace(state, notes=(*notes, *join_notes, partition_note))

    def partition_note(self, state: HCCTState, comparison: EpochComparison, settled: bool) -> Note:
        """Describe the next groups and their utility; with parts and cosines if they are not the groups that trained.

        Args:
            state: the state with the next groups.
            comparison: the data for the partition.
            settled: whether the groups were final before, so that only newcomers were placed.
        """
        groups_changed = state.next != state.groups
        text = f"{_count(len(state.next), 'group')} of {_count(len(state.clients), 'client')}"
        silent_text = ""
        num_silent = len(state.clients) - len(comparison.clients)
        if num_silent:
            silent_text = f"; {_count(num_silent, 'silent client')} stay with their previous groups"
        note = Note(
            kind="partition",
            effect="regroups",
            clients=state.clients,
            text=text,
            parts=state.next if groups_changed else (),
            labels={"answered": len(comparison.answered)},
            heard=comparison.clients,
        )
        numbers = {"groups": float(len(state.next))}
        gram_matrix = comparison.gram
        if gram_matrix is None:
            return replace(note, text=f"{text}, as λ is infinite{silent_text}", numbers=numbers)

        # The utility of the groups, as far as their members can be compared.
        groups = [group for group in state.next if comparison.positions_of(group)]
        values = comparison.utilities(gram_matrix, groups)
        numbers["utility"] = sum(values["utility"].values())
        numbers["tradeoff"] = float(comparison.tradeoffs.mean())
        signal_text = ""
        if self.cosines == "signals":
            numbers["signal"] = comparison.signal_share
            signal_text = (
                f", of {comparison.signal_share:.0%} signal"
                if comparison.signal_share < 1
                else ", of whole updates"
            )
        rule_text = (
            f"λ {numbers['tradeoff']:.3g}"
            if self.groups is None
            else f"{_count(self.groups, 'group')} asked for"
        )
        layer_text = "" if state.layer is None else f", layer {state.layer!r}"
        text += f", {rule_text}{layer_text}{signal_text}: utility {numbers['utility']:.3g}"

        # How far the groups are from another merge, if λ decides about merges.
        lambda_decides = not settled and self.groups is None
        if lambda_decides:
            note = replace(note, otherwise="two groups would have merged")
        if len(groups) > 1:
            positions = [comparison.positions_of(group) for group in groups]
            gains = benefits(gram_matrix, comparison.sizes, comparison.tradeoffs, positions)
            numbers["best_open"] = float(gains.max())
            text += f", the best merge not made would add {numbers['best_open']:.3g}"
            if lambda_decides:
                no_tradeoff = 0 * comparison.tradeoffs
                free_gains = benefits(gram_matrix, comparison.sizes, no_tradeoff, positions)
                note = replace(note, criteria=self._criteria(free_gains, gains))

        similarity = {}
        if groups_changed:
            similarity[state.layer or "all"] = torch.from_numpy(cosine(gram_matrix)).float()
        return replace(
            note, text=text + silent_text, numbers=numbers, values=values, similarity=similarity
        )

    def _criteria(self, free_gains: np.ndarray, gains: np.ndarray) -> tuple[Criterion, ...]:
        """The comparison of λ with the smallest at which merging two of the groups would add to the utility.

        Utilities, and so the gains of merges, are linear in λ.

        Args:
            free_gains: ``(k, k)``, the gains of the merges at λ = 0.
            gains: ``(k, k)``, the gains at the λ of the run.
        """
        off_diagonal = ~np.eye(len(gains), dtype=bool)
        gain_slopes = gains[off_diagonal] - free_gains[off_diagonal]
        rising = gain_slopes > 0
        if not rising.any():
            return ()
        # The multiple of λ at which a pair's gain crosses zero; below 1 only by rounding, as the pair
        # has not merged.
        crossings = -free_gains[off_diagonal][rising] / gain_slopes[rising]
        next_merge = float(max(crossings.min(), 1.0)) * self.tradeoff
        return (
            Criterion(
                "λ of the next merge",
                next_merge,
                ">=",
                self.tradeoff,
                "tradeoff",
                key="next_merge",
                met="no merge adds utility",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class HCCTE(HCCT):
    """HCCT that compares one layer alone: the one whose first updates differ most between clients."""

    name: ClassVar[str] = "hcct-e"

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
    examples_of_row = dict.fromkeys((state.row[client] for client in group), 0)
    for client in group:
        examples_of_row[state.row[client]] += state.sizes.get(client, 0)
    weights = {row: examples for row, examples in examples_of_row.items() if examples}
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
    has_first_model = {
        row: torch.equal(state.models[row], state.first)
        for row in {state.row[client] for client in candidates}
    }
    return tuple(client for client in candidates if has_first_model[state.row[client]])


def trained(state: HCCTState, replies: Replies) -> HCCTState:
    """Apply the mean update of each group that answered, also for its silent members; the other groups' models stay."""
    if replies.means is not None and replies.mean_counts is not None:
        mean_updates = replies.means
        reply_counts = replies.mean_counts
    else:
        mean_updates, reply_counts = group_means(replies, state.next)
    # Equation 6: the group's first model plus its mean update. All members have the result.
    moved_groups = np.flatnonzero(reply_counts)
    row_of_client = {}
    for row, group_index in enumerate(moved_groups):
        for client in state.next[group_index]:
            row_of_client[client] = row
    moved_models = (starts(state) + mean_updates)[moved_groups]
    # Clients of the other groups keep the models that they have, in the rows below.
    kept_rows = sorted(
        {state.row[client] for client in state.clients if client not in row_of_client}
    )
    new_row_of = {row: len(moved_groups) + offset for offset, row in enumerate(kept_rows)}
    for client in state.clients:
        if client not in row_of_client:
            row_of_client[client] = new_row_of[state.row[client]]
    answered_sizes = zip(replies.clients, map(int, replies.examples), strict=True)
    return replace(
        state,
        models=torch.cat([moved_models, state.models[kept_rows]]),
        row={client: row_of_client[client] for client in state.clients},
        groups=state.next,
        sizes={**state.sizes, **dict(answered_sizes)},
    )


# ----------------------------------------------------------------------------------------------------
# Partition (Algorithm 2): merges, and placement of silent clients and newcomers.


Group = list[Client]
"""The members of a group while groups are made."""


@dataclass(frozen=True, kw_only=True)
class EpochComparison:
    """Data for a partition.

    Attributes:
        answered: clients that answered.
        clients: these, and the silent clients whose cosines are remembered; n in all.
        gram: ``(n, n)``, the Gram matrix of their updates; None if λ is infinite.
        sizes: ``(n,)``, training-set sizes.
        tradeoffs: ``(n,)``, λ of each client.
        signal_share: share of signal in their squared norms, as far as noise is known.
    """

    answered: tuple[Client, ...]
    clients: tuple[Client, ...]
    gram: np.ndarray | None
    sizes: np.ndarray
    tradeoffs: np.ndarray
    signal_share: float

    @cached_property
    def position_of_client(self) -> Mapping[Client, int]:
        """Client -> its position."""
        return {client: position for position, client in enumerate(self.clients)}

    def positions_of(self, group: Iterable[Client]) -> list[int]:
        """Return the positions of the clients of a group that can be compared."""
        positions = self.position_of_client
        return [positions[client] for client in group if client in positions]

    def partition(self, members: Sequence[Client], group_count: int | None) -> list[Group]:
        """Partition some of the clients by Algorithm 2.

        Args:
            members: the clients to partition.
            group_count: the number of groups; None to merge while there is a gain.
        """
        if not members:
            return []
        if self.gram is None:
            return [list(members)]
        positions = self.positions_of(members)
        parts = utility_merge(
            self.gram[np.ix_(positions, positions)],
            self.sizes[positions],
            self.tradeoffs[positions],
            groups=None if group_count is None else min(group_count, len(positions)),
        )
        return [[members[index] for index in part] for part in parts]

    def best_group(self, groups: Sequence[Group], newcomer: Client) -> tuple[int, float] | None:
        """Return the group that gains most by a newcomer (eq. 15, 16), and the gain; None if no group can be compared."""
        comparable_groups = [
            index for index, group in enumerate(groups) if self.positions_of(group)
        ]
        if not comparable_groups:
            return None
        if self.gram is None:
            return comparable_groups[0], np.inf
        (newcomer_position,) = self.positions_of([newcomer])
        group_positions = [self.positions_of(groups[index]) for index in comparable_groups]
        gains = benefit(self.gram, self.sizes, self.tradeoffs, group_positions, newcomer_position)
        best = int(gains.argmax())
        return comparable_groups[best], float(gains[best])

    def utilities(
        self, gram_matrix: np.ndarray, groups: Iterable[tuple[Client, ...]]
    ) -> dict[str, dict[Client, float]]:
        """Return each member's utility (eq. 9), its gain over being alone, and its group's utility (eq. 14).

        Args:
            gram_matrix: ``(n, n)``, the Gram matrix of the updates.
            groups: the groups; each has members that can be compared.

        Returns:
            ``utility``, ``gain`` and ``group_utility``, each of them client -> number.
        """
        values: dict[str, dict[Client, float]] = {"utility": {}, "gain": {}, "group_utility": {}}
        for group in groups:
            positions = self.positions_of(group)
            sizes = self.sizes[positions]
            tradeoffs = self.tradeoffs[positions]
            group_gram = gram_matrix[np.ix_(positions, positions)]
            member_utilities = utility(group_gram, sizes, tradeoffs, range(len(positions)))
            # The utility of a client alone (eq. 12).
            utilities_alone = 1.0 - tradeoffs / sizes
            group_utility = float(member_utilities.sum())
            for index, position in enumerate(positions):
                client = self.clients[position]
                values["utility"][client] = float(member_utilities[index])
                values["gain"][client] = float(member_utilities[index] - utilities_alone[index])
                values["group_utility"][client] = group_utility
        return values


def _from_the_first(state: HCCTState, clients: Iterable[Client]) -> HCCTState:
    """Give the first model to ``clients``."""
    return replace(
        state,
        models=torch.cat([state.models, state.first[None]]),
        row={**state.row, **dict.fromkeys(clients, len(state.models))},
    )


def follow(
    groups: list[Group], former_groups: Iterable[Group], sizes: Mapping[Client, int]
) -> list[Group]:
    """Add to new groups the clients of former groups that are in none of them.

    Each goes to the new group that has most of the data of its former group. Of equal shares, the
    group with the smallest first member counts. If no client of a former group is in a new group,
    the former group stays together.

    Args:
        groups: the new groups.
        former_groups: the former groups.
        sizes: training-set sizes.
    """
    group_of_client = {}
    for index, group in enumerate(groups):
        group_of_client.update(dict.fromkeys(group, index))
    extended_groups = [list(group) for group in groups]
    for former_group in former_groups:
        absent = [client for client in former_group if client not in group_of_client]
        if not absent:
            continue
        # The data of the former group's clients in each new group.
        examples_in: dict[int, int] = {}
        for client in former_group:
            if client in group_of_client:
                index = group_of_client[client]
                examples_in[index] = examples_in.get(index, 0) + sizes[client]
        if examples_in:
            most_data = min(examples_in, key=lambda index: (-examples_in[index], groups[index][0]))
            extended_groups[most_data] += absent
        else:
            extended_groups.append(absent)
    return extended_groups


# -- notes
# ------------------------------------------------------------------------------------------------------------


def _join_note(
    client: Client, groups: list[Group], best_group: tuple[int, float] | None, is_full: bool
) -> Note:
    """The note of a newcomer, which joins the group it benefits most if its criteria hold.

    Args:
        client: the newcomer.
        groups: the groups that it may join.
        best_group: the one that benefits most, and its gain; None if no group can be compared.
        is_full: whether there are as many groups as asked for, so that it joins in any case.
    """
    if best_group is None:
        return Note(
            kind="wait",
            effect="waits",
            clients=(client,),
            text=f"client {client} waits: no other client answered",
        )
    group_index, gain = best_group
    criteria: tuple[Criterion, ...] = ()
    if not is_full:
        gain_criterion = Criterion(
            "gain of the best group",
            gain,
            ">",
            0.0,
            met="it joins",
            unmet="it stays alone",
            key="best_gain",
        )
        criteria = (gain_criterion,)
    if all(criterion.held for criterion in criteria):
        change = (
            f"raises most, by {gain:.3g}"
            if gain > 0
            else f"changes least, by {gain:.3g}; groups are as many as asked for"
        )
        text = f"client {client} joins the group of client {min(groups[group_index])}, whose utility it {change}"
    else:
        text = f"client {client} stays alone: in the best of the groups it would change utility by {gain:.3g}"
    return Note(
        kind="join",
        effect="joins",
        clients=(client,),
        text=text,
        criteria=criteria,
        numbers={"gain": gain},
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# ----------------------------------------------------------------------------------------------------
# HCCT-E (section V, equation 19): choice of the layer to compare, by the largest relative variance.


Layers = Mapping[str, tuple[tuple[int, int], ...]]
"""Layer -> the columns of each of its tensors, one after the other."""


def comparable(federation: Federation, personal_layers: tuple[str, ...]) -> Layers:
    """Return the layers that may be compared: those that are sent, without normalisation layers unless there are no others.

    Only the sizes of a layer's tensors are known. A layer of several tensors, all of one size (one
    scale and one shift per channel), counts as a normalisation layer.

    Args:
        federation: the columns of the model's layers and tensors.
        personal_layers: layers that stay at the client.
    """
    sent_layers = {}
    for layer, (start, stop) in federation.columns.items():
        if layer in personal_layers:
            continue
        tensor_spans = [
            span for span in federation.tensors.values() if start <= span[0] and span[1] <= stop
        ]
        sent_layers[layer] = tuple(tensor_spans) or ((start, stop),)
    other_layers = {
        layer: spans for layer, spans in sent_layers.items() if not _is_normalisation(spans)
    }
    return other_layers or sent_layers


def _is_normalisation(spans: tuple[tuple[int, int], ...]) -> bool:
    """Whether a layer has several tensors, all of one size."""
    tensor_sizes = {stop - start for start, stop in spans}
    return len(spans) > 1 and len(tensor_sizes) == 1


def relative_variances(updates: torch.Tensor, layers: Layers) -> dict[str, float]:
    """Return the relative variance of the updates in each layer.

    It is ``mean_n ‖g_n - ḡ‖² / ‖ḡ‖²``, with ḡ the unweighted mean of the updates. Both terms follow
    from the layer's Gram matrix: the mean of its diagonal minus its mean, and its mean. A mean that
    cancels counts as 1e-12 of the squared norms, so that the result does not depend on units.

    Args:
        updates: ``(n, d)``, the clients' updates.
        layers: the layers.

    Returns:
        Layer -> relative variance; 0 where no update moved.
    """
    ratios = {}
    for layer, spans in layers.items():
        products = gram(updates, columns=(spans[0][0], spans[-1][1]))
        # mean_n ‖g_n‖² and ‖ḡ‖².
        mean_square = float(products.diagonal().mean())
        square_of_mean = max(float(products.mean()), 0.0)
        ratios[layer] = 0.0
        if mean_square > 0:
            variance = mean_square - square_of_mean
            ratios[layer] = variance / max(square_of_mean, 1e-12 * mean_square)
    return ratios


def paper_code_ratios(updates: torch.Tensor, layers: Layers) -> dict[str, float]:
    """Return variance / mean of the accumulated gradients in each layer, as in the published code.

    Both are over all entries of all clients together. The ratios of weight and bias are computed
    separately and added. The mean is signed, so a layer may rank last because its mean is negative.
    Gradients are the negative updates; the learning rate scales all ratios by the same factor.

    Args:
        updates: ``(n, d)``, the clients' updates.
        layers: the layers.

    Returns:
        Layer -> ratio; -inf where it is undefined.
    """
    ratios = {}
    for layer, spans in layers.items():
        layer_ratio = 0.0
        for start, stop in spans:
            variance, mean = torch.var_mean(-updates[:, start:stop], correction=0)
            layer_ratio += float(variance) / float(mean) if float(mean) else math.nan
        ratios[layer] = layer_ratio if math.isfinite(layer_ratio) else -math.inf
    return ratios


def layer_note(clients: tuple[Client, ...], ratios: Mapping[str, float], rule: str) -> Note:
    """Describe the choice of the layer to compare; of equal ratios the first layer in the forward pass.

    Args:
        clients: all clients.
        ratios: layer -> ratio.
        rule: the rule, ``robust`` or ``paper-code``.
    """
    ranked_layers = sorted(ratios, key=lambda layer: -ratios[layer])
    chosen = ranked_layers[0]
    text = f"clients are compared by layer {chosen!r} from now on, of relative variance {ratios[chosen]:.3g} ({rule})"
    if len(ranked_layers) > 1:
        runner_up = ranked_layers[1]
        text += f"; next is {runner_up!r} with {ratios[runner_up]:.3g}"
    return Note(kind="layer", effect="info", clients=clients, text=text, numbers=ratios)


# ----------------------------------------------------------------------------------------------------
# Memory (ours): means of cosines over epochs, so that the noise of one epoch does not split a
#     group.
#
# Near a group's optimum its mean update vanishes: the members' updates are then noise or have
# negative cosines, and the definition dissolves a group that should stay. The cosine of two clients
# is therefore the mean of their cosines in the epochs in which both answered, each weighted by the
# norms of the two updates, and by β for every later such epoch. So updates from epochs far from the
# optimum count most.
#
# For signals, that mean is divided by the share of signal in the squared norms of all clients that
# are compared, over all their epochs: the correction of a correlation for noise. The share of one
# client, or of one epoch, is too noisy: with 40 examples per client, it was below zero for a
# quarter of the clients.
#
# First updates, from the first model, are remembered as well, as sketches of :data:`SKETCH`
# numbers: those of the first epoch and of newcomers. A newcomer's first update is compared with
# them, not with the other clients' updates of a model that the newcomer has never had. Clients that
# did not answer in the first epoch have no first update.


SKETCH = 4096
"""Numbers kept of a first update; the standard deviation of its cosines' error is 0.022 at most."""


@state("hcct.memory")
class Memory:
    """Cosines of updates over epochs.

    Attributes:
        clients: n ids.
        products: ``(n, n)``, ``Σ β^age <g_i, g_j>`` over the epochs in which both clients answered.
        weights: ``(n, n)``, ``Σ β^age ‖g_i‖ ‖g_j‖`` over the same epochs; 0 for clients never
            compared.
        lengths: ``(n,)``, ``Σ β^age ‖g_i‖``.
        noise: ``(n,)``, ``Σ β^age`` times the part of ``‖g_i‖²`` that is noise; 0 in epochs in
            which it is unknown.
        began: ids of the clients whose first updates, from the first model, are the rows of
            ``firsts``.
        firsts: ``(m, p)``, first updates, with p at most ``SKETCH``; None before there are any.
    """

    clients: tuple[Client, ...]
    products: torch.Tensor
    weights: torch.Tensor
    lengths: torch.Tensor
    noise: torch.Tensor
    began: tuple[Client, ...] = ()
    firsts: torch.Tensor | None = None


def remember(
    memory: Memory | None,
    clients: tuple[Client, ...],
    gram_matrix: np.ndarray,
    decay: float,
    noise: np.ndarray | None = None,
) -> Memory:
    """Return the memory after an epoch.

    Args:
        memory: the memory before it; None before the first epoch.
        clients: the n clients that answered.
        gram_matrix: ``(n, n)``, the Gram matrix of their updates.
        decay: weight of an epoch in each later one (β).
        noise: ``(n,)``, the part of the diagonal that is noise; None for zero.
    """
    # The tables grow by the clients that are new in the memory.
    known_clients = memory.clients if memory is not None else ()
    all_clients = tuple(sorted({*known_clients, *clients}))
    count = len(all_clients)
    products = np.zeros((count, count))
    weights = np.zeros((count, count))
    lengths = np.zeros(count)
    noises = np.zeros(count)
    if memory is not None:
        earlier = _positions(all_clients, known_clients)
        products[np.ix_(earlier, earlier)] = memory.products
        weights[np.ix_(earlier, earlier)] = memory.weights
        lengths[earlier] = memory.lengths
        noises[earlier] = memory.noise
    # Only pairs that answered together age by β and get this epoch's products.
    answered = _positions(all_clients, clients)
    pairs = np.ix_(answered, answered)
    update_norms = np.sqrt(np.maximum(np.diagonal(gram_matrix), 0.0))
    products[pairs] = decay * products[pairs] + gram_matrix
    weights[pairs] = decay * weights[pairs] + np.outer(update_norms, update_norms)
    lengths[answered] = decay * lengths[answered] + update_norms
    noises[answered] = decay * noises[answered] + (0.0 if noise is None else noise)
    return Memory(
        clients=all_clients,
        products=torch.from_numpy(products),
        weights=torch.from_numpy(weights),
        lengths=torch.from_numpy(lengths),
        noise=torch.from_numpy(noises),
        began=memory.began if memory is not None else (),
        firsts=memory.firsts if memory is not None else None,
    )


def _positions(all_clients: Sequence[Client], clients: Iterable[Client]) -> list[int]:
    """The positions of some clients among all."""
    position_of_client = {client: position for position, client in enumerate(all_clients)}
    return [position_of_client[client] for client in clients]


def begin(memory: Memory, clients: tuple[Client, ...], updates: torch.Tensor) -> Memory:
    """Add first updates to the memory.

    The cosines of these clients with those that began before them are the cosines of the first
    updates.

    Args:
        memory: the memory, with this epoch in it.
        clients: m clients that have just answered for the first time.
        updates: ``(m, p)``, their updates.
    """
    new_sketches = sketch(updates, SKETCH).clone()
    if memory.firsts is None:
        return replace(memory, began=clients, firsts=new_sketches)
    # The products and norms of new and earlier first updates.
    first_products = (new_sketches @ memory.firsts.T).double()
    norm_products = torch.outer(
        torch.linalg.vector_norm(new_sketches, dim=1),
        torch.linalg.vector_norm(memory.firsts, dim=1),
    ).double()
    # They replace this epoch's entries, which compare updates of different models.
    new_positions = _positions(memory.clients, clients)
    earlier_positions = _positions(memory.clients, memory.began)
    products = memory.products.clone()
    weights = memory.weights.clone()
    for table, entries in ((products, first_products), (weights, norm_products)):
        table[np.ix_(new_positions, earlier_positions)] = entries
        table[np.ix_(earlier_positions, new_positions)] = entries.T
    return replace(
        memory,
        products=products,
        weights=weights,
        began=(*memory.began, *clients),
        firsts=torch.cat([memory.firsts, new_sketches]),
    )


def recall(memory: Memory, answered: Collection[Client]) -> tuple[tuple[Client, ...], np.ndarray]:
    """Return the clients that can be compared, and the Gram matrix of their remembered cosines and mean norms.

    These are the clients that have just answered, and the silent clients whose cosines with all
    others in the result are known. A mean norm is weighted by the norms themselves. After one epoch
    the result is that epoch's Gram matrix.

    Args:
        memory: the memory.
        answered: clients that have just answered.

    Returns:
        The n clients, sorted, and the Gram matrix ``(n, n)``.
    """
    products = memory.products.numpy()
    weights = memory.weights.numpy()
    lengths = memory.lengths.numpy()
    was_compared = weights > 0
    # The clients that answered, then each silent client whose cosines with all of these are known.
    answered_clients = set(answered)
    recalled = [
        position for position, client in enumerate(memory.clients) if client in answered_clients
    ]
    for position, client in enumerate(memory.clients):
        is_silent = client not in answered_clients
        if is_silent and was_compared[position, [*recalled, position]].all():
            recalled.append(position)
    recalled.sort()
    pairs = np.ix_(recalled, recalled)
    cosines = np.divide(
        products[pairs],
        weights[pairs],
        out=np.zeros((len(recalled), len(recalled))),
        where=was_compared[pairs],
    )
    # Σ β^age ‖g_i‖² / Σ β^age ‖g_i‖
    mean_norms = np.divide(
        np.diagonal(products), lengths, out=np.zeros(len(lengths)), where=lengths > 0
    )
    recalled_norms = mean_norms[recalled]
    gram_matrix = np.clip(cosines, -1.0, 1.0) * np.outer(recalled_norms, recalled_norms)
    return tuple(memory.clients[position] for position in recalled), gram_matrix


def signal_in(memory: Memory, clients: Collection[Client]) -> float:
    """Return the share of signal in the squared norms of the clients' updates, over all their epochs."""
    positions = [position for position, client in enumerate(memory.clients) if client in clients]
    squared_norms = memory.products.numpy().diagonal()
    return share_of_signal(squared_norms[positions], memory.noise.numpy()[positions])


def share_of_signal(squared_norms: np.ndarray, noise: np.ndarray) -> float:
    """Return the share of a sum of squared norms that is not noise.

    Args:
        squared_norms: ``(n,)``, squared norms.
        noise: ``(n,)``, the part of each that is noise.

    Returns:
        The share; 1 if no signal is left, because then only cosines of whole updates can be used.
    """
    total = float(squared_norms.sum())
    if total <= 0:
        return 1.0
    signal_share = 1.0 - float(noise.sum()) / total
    return signal_share if signal_share > 0 else 1.0


def forget(memory: Memory | None, leavers: Collection[Client]) -> Memory | None:
    """Return the memory without clients that have left."""
    if memory is None:
        return None
    kept = [index for index, client in enumerate(memory.clients) if client not in leavers]
    kept_firsts = [index for index, client in enumerate(memory.began) if client not in leavers]
    if not kept:
        return None
    firsts = None
    if memory.firsts is not None and kept_firsts:
        firsts = memory.firsts[kept_firsts]
    return Memory(
        clients=tuple(memory.clients[index] for index in kept),
        products=memory.products[kept][:, kept],
        weights=memory.weights[kept][:, kept],
        lengths=memory.lengths[kept],
        noise=memory.noise[kept],
        began=tuple(memory.began[index] for index in kept_firsts),
        firsts=firsts,
    )


# ----------------------------------------------------------------------------------------------------
# Inner products: of whole updates, or of the signals in them.
#
# Noise makes cosines smaller: ``‖g_i‖²`` contains the client's noise, but ``<g_i, g_j>`` does not,
# because the noise of two clients is independent. Let a_i and b_i be updates of two halves of the
# client's data, and g_i their mean. Their noise is independent too, so noise adds ``‖(a_i - b_i) /
# 2‖² = ‖g_i‖² - a_i · b_i`` to ``‖g_i‖²``.


def _products(replies: Replies, columns: slice) -> np.ndarray:
    if replies.gram is not None:
        return replies.gram
    return gram(replies.all_updates, columns=columns)


def halves_products(replies: Replies) -> np.ndarray:
    """Return the inner products ``a_i · b_i`` of each client's halves, ``(n,)``; NaN for a client without."""
    products = np.full(len(replies.clients), np.nan)
    if replies.halves is not None:
        halved_clients = replies.halves.clients
        # The Gram matrix is of a_1 to a_n, then b_1 to b_n: a_i · b_i is at (i, n + i).
        shared_products = replies.halves.gram.diagonal(len(halved_clients))
        products[replies.positions(halved_clients)] = shared_products
    return products


def noise_in(gram_matrix: np.ndarray, half_products: np.ndarray) -> np.ndarray:
    """Estimate the noise in the squared norms of updates.

    A client without halves gets the same share of noise as all others together.

    Args:
        gram_matrix: ``(n, n)``, the Gram matrix of the updates.
        half_products: ``(n,)``, the inner products of each client's halves; NaN for clients without.

    Returns:
        ``(n,)``, the part of each squared norm that is noise; 0 if no client has halves.
    """
    squared_norms = gram_matrix.diagonal()
    has_halves = ~np.isnan(half_products)
    if not has_halves.any():
        return np.zeros(len(gram_matrix))
    # ‖(a_i - b_i) / 2‖² = ‖g_i‖² - a_i · b_i
    noise = squared_norms - np.where(has_halves, half_products, 0.0)
    total = float(squared_norms[has_halves].sum())
    noise_share = float(noise[has_halves].sum()) / total if total > 0 else 0.0
    return np.where(has_halves, noise, squared_norms * noise_share)


def without_noise(gram_matrix: np.ndarray, signal_share: float) -> np.ndarray:
    """Remove the noise from the diagonal of a Gram matrix.

    The remaining matrix may have negative eigenvalues. In a group at its optimum this would give
    means with a negative squared norm, and unbounded utilities. So cosines are limited to [-1, 1],
    and directions of negative eigenvalues, which are noise, are left out. If there is no noise
    except that of float32, the matrix does not change.

    Args:
        gram_matrix: ``(n, n)``, the Gram matrix of the updates.
        signal_share: the share of signal in its diagonal.

    Returns:
        ``(n, n)``, a Gram matrix of vectors close to the signals.
    """
    if signal_share > 1.0 - 1e-6:
        return gram_matrix
    # Cosines of signals: only the norms contain noise, so each is divided by the share of signal.
    update_norms = np.sqrt(np.maximum(gram_matrix.diagonal(), 0.0))
    norm_products = signal_share * np.outer(update_norms, update_norms)
    cosines = np.divide(
        gram_matrix, norm_products, out=np.eye(len(update_norms)), where=norm_products > 0
    )
    cosines = np.clip(cosines, -1.0, 1.0)
    np.fill_diagonal(cosines, 1.0)
    # Vectors with these cosines, without the directions of negative eigenvalues.
    eigenvalues, axes = np.linalg.eigh(cosines)
    vectors = axes * np.sqrt(np.maximum(eigenvalues, 0.0))
    # Unit length again. No vector is zero, because each squared length was 1 or more.
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors @ vectors.T * norm_products)


def _with_firsts(
    memory: Memory, first_replies: Replies, columns: slice, sketch_size: int | None
) -> Memory:
    """Add first updates to the memory; with ``sketch_size``, as sketches (HCCT-E first needs all layers)."""
    if not first_replies.clients:
        return memory
    updates = first_replies.all_updates[:, columns]
    if sketch_size is not None:
        updates = sketch(updates, sketch_size)
    return begin(memory, first_replies.clients, updates)
