"""HCCT: in every epoch, clients train in the groups whose members gain most from each other; the groups are made anew.

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
        name = type(self).__name__
        if self.groups is not None and np.isinf(self.tradeoff):
            raise SettingError(
                f"{name}.groups {self.groups} needs a finite tradeoff, got inf, which is one group"
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
        name, clients, layers = type(self).__name__, federation.clients, tuple(federation.columns)
        if self.groups is not None and self.groups > len(clients):
            raise SettingError(
                f"{name}.groups must be at most the {len(clients)} clients, got {self.groups}"
            )
        if self.personal > len(layers):
            raise SettingError(
                f"{name}.personal must be at most the {len(layers)} layers of the model, got {self.personal}"
            )
        keep = layers[len(layers) - self.personal :]
        first = federation.draw(0)
        return HCCTState(
            clients=clients,
            first=first,
            models=first[None],
            row=dict.fromkeys(clients, 0),
            groups=(clients,),
            next=(clients,),
            parameters=federation.parameters.stop,
            keep=keep,
            layers={} if self.layer == "all" else comparable(federation, keep),
            training=federation.training,
        )

    def plan(self, state: HCCTState, cohort: Cohort) -> Plan:
        share = 1.0 if self.one_shot and not state.partitioned else self.fraction
        compares = not (np.isinf(self.tradeoff) or self._rests(state))
        new, opens = set(self._remembered_firsts(state)), self.layer_open(state)
        usual = Task(offered=(0,), local_layers=state.keep)
        if self.cosines == "signals" and compares and not opens:
            usual = replace(
                usual, halves=True, training=of_equal_steps(state.training, state.sizes.values())
            )
        tasks = {}
        for row, group in enumerate(state.next):
            # A first update is compared with those of the first epoch, so it needs that epoch's
            # learning rate.
            task = replace(usual, offered=(row,), lr_round=0 if new.issuperset(group) else None)
            tasks.update(dict.fromkeys(cohort.sample(group, share), task))
        if opens:
            return Plan(models=starts(state), tasks=tasks, need="rows")
        if not compares:
            return Plan(models=starts(state), tasks=tasks, need="mean")
        need: Literal["rows", "gram"] = (
            "rows" if new else "gram"
        )  # first updates are remembered as sketches
        return Plan(
            models=starts(state), tasks=tasks, need=need, columns=state.columns, sketch=self.sketch
        )

    def step(self, state: HCCTState, replies: Replies) -> HCCTState:
        if not replies.clients:
            return replace(state, notes=())
        state, notes = self._with_layer(state, replies)
        new, rests = self._remembered_firsts(state), self._rests(state)
        state = replace(trained(state, replies), epoch=state.epoch + 1)
        if rests:
            return replace(state, notes=notes)
        state, heard = self.hear(state, replies, new)
        return self.regroup(state, heard, notes)

    def assignment(self, state: HCCTState) -> Assignment:
        return Assignment(models=state.models, row=state.row, groups=state.groups)

    def explain(self, state: HCCTState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: HCCTState, clients: tuple[Client, ...]) -> HCCTState:
        """Admit clients; each newcomer trains from the first model, alone in its group."""
        new = tuple(sorted(set(clients) - set(state.clients)))
        alone = [(c,) for c in new]
        return replace(
            state,
            clients=joined(state.clients, new),
            models=torch.cat([state.models, state.first[None]]),
            row={**state.row, **dict.fromkeys(new, len(state.models))},
            groups=as_groups([*state.groups, *alone]),
            next=as_groups([*state.next, *alone]),
            waiting=tuple(sorted((*state.waiting, *new))),
        )

    def retire(self, state: HCCTState, clients: tuple[Client, ...]) -> HCCTState:
        gone = set(clients)
        stay = without(state.clients, gone)

        def left(groups: Groups) -> Groups:
            remaining = (without(group, gone) for group in groups)
            return as_groups(group for group in remaining if group)

        return replace(
            state,
            clients=stay,
            row={c: state.row[c] for c in stay},
            groups=left(state.groups),
            next=left(state.next),
            sizes={c: n for c, n in state.sizes.items() if c not in gone},
            waiting=tuple(c for c in state.waiting if c in stay),
            memory=forget(state.memory, gone),
        )

    # -- in one step
    # ----------------------------------------------------------------------------------------------------

    def settled(self, state: HCCTState) -> bool:
        """Return whether the only partition has been made; it is made again if all of its clients have left."""
        return self.one_shot and state.partitioned and state.waiting != state.clients

    def _rests(self, state: HCCTState) -> bool:
        """Whether the next epoch keeps its groups: no partition is due, no client waits, and all have answered once."""
        every = self.partition_every or (1 if self.cosines == "updates" else 4)
        due = (
            not state.partitioned
            or state.epoch % every == 0
            or not state.sizes.keys() >= set(state.clients)
        )
        return not state.waiting and (self.settled(state) or not due)

    def layer_open(self, state: HCCTState) -> bool:
        """Return whether the layer to compare is yet to be chosen."""
        return (
            self.layer != "all"
            and state.layer is None
            and bool(state.layers)
            and not np.isinf(self.tradeoff)
        )

    def _with_layer(self, state: HCCTState, replies: Replies) -> tuple[HCCTState, tuple[Note, ...]]:
        """HCCT-E: choose the layer whose updates differ most between clients, once two or more have answered (eq. 19)."""
        if not self.layer_open(state) or len(replies.clients) < 2:
            return state, ()
        measured = relative_variances if self.layer == "robust" else paper_code_ratios
        ratios = measured(replies.all_updates, state.layers)
        note = layer_note(state.clients, ratios, self.layer)
        return replace(state, layer=max(ratios, key=lambda layer: ratios[layer])), (note,)

    def _remembered_firsts(self, state: HCCTState) -> tuple[Client, ...]:
        """The clients whose next update will be remembered as their first."""
        return beginners(state) if self.memory and not np.isinf(self.tradeoff) else ()

    def hear(
        self, state: HCCTState, replies: Replies, new: tuple[Client, ...]
    ) -> tuple[HCCTState, Comparison]:
        """Prepare the data for the next partition.

        Args:
            state: the state after training.
            replies: replies of the epoch.
            new: clients whose update was their first.

        Returns:
            The state with an updated memory, and the data for the partition.
        """
        clients, matrix, signal = replies.clients, None, 1.0
        if not np.isinf(self.tradeoff):
            columns = state.columns
            if (
                replies.updates is not None and replies.means is not None
            ):  # sketches of these columns
                columns = slice(0, replies.updates.shape[1])
            matrix = _products(replies, columns)
            noise = noise_in(matrix, shared(replies))
            signal = share_of_signal(matrix.diagonal(), noise)
            if self.memory and not self.layer_open(
                state
            ):  # products of other columns are not comparable with later ones
                memory = remember(state.memory, clients, matrix, self.memory, noise)
                memory = _with_firsts(
                    memory, replies.of(new), columns, self.sketch if replies.means is None else None
                )
                state = replace(state, memory=memory)
                clients, matrix = recall(memory, clients)
                signal = signal_in(memory, clients)
            if self.cosines == "signals":
                matrix = without_noise(matrix, signal)
        sizes = np.array([state.sizes[c] for c in clients], dtype=np.float64)
        unit = sizes if self.scale == "per-client" else np.ones(len(sizes))
        if self.scale == "mean-size":
            unit = unit * np.mean(list(state.sizes.values()))
        return state, Comparison(
            replies.clients, clients, matrix, sizes, self.tradeoff * unit, signal
        )

    def regroup(self, state: HCCTState, heard: Comparison, notes: tuple[Note, ...]) -> HCCTState:
        """Make the groups of the next epoch: partition the clients that can be compared, add the others, then newcomers.

        Args:
            state: the state after training.
            heard: the data for the partition.
            notes: notes of the epoch so far.
        """
        settled, spoke = self.settled(state), set(heard.spoke)
        one_by_one = (settled or self.newcomers == "benefit") and state.waiting != state.clients
        apart = state.waiting if one_by_one else ()
        new = [c for c in apart if c in spoke]
        among = [c for c in heard.clients if c not in apart]
        missed = (
            set(state.clients) - spoke
            if self.one_shot and not state.partitioned and among
            else set()
        )
        old = [[c for c in group if c not in new and c not in missed] for group in state.next]
        parts = (
            [group for group in old if group]
            if settled
            else follow(heard.merged(among, self.groups), old, state.sizes)
        )
        if missed:
            state, parts = _from_the_first(state, missed), [*parts, *([c] for c in sorted(missed))]
        waiting = missed | set(state.waiting) - (spoke - set(new))
        joined = []
        for client in new:
            found = heard.best(parts, client)
            waiting -= {client} if found else set()
            full = (
                self.groups is not None and len(parts) >= self.groups
            )  # a number asked for is not exceeded
            joined.append(_join_note(client, parts, found, full))
            if found and all(one.held for one in joined[-1].criteria):
                parts[found[0]].append(client)
            else:
                parts.append([client])
        following = as_groups(parts)
        state = replace(
            state,
            next=following,
            partitioned=state.partitioned or bool(among),
            waiting=tuple(sorted(waiting)),
        )
        return replace(state, notes=(*notes, *joined, self.partition_note(state, heard, settled)))

    def partition_note(self, state: HCCTState, heard: Comparison, settled: bool) -> Note:
        """Describe the next groups and their utility; with parts and cosines if they are not the groups that trained.

        Args:
            state: the state with the next groups.
            heard: the data for the partition.
            settled: whether the groups were final before, so that only newcomers were placed.
        """
        groups = [group for group in state.next if heard.at(group)]
        changed = state.next != state.groups
        absent = len(state.clients) - len(heard.clients)
        text = f"{_count(len(state.next), 'group')} of {_count(len(state.clients), 'client')}"
        note = Note(
            kind="partition",
            effect="regroups",
            clients=state.clients,
            text=text,
            parts=state.next if changed else (),
            labels={"answered": len(heard.spoke)},
            heard=heard.clients,
        )
        numbers = {"groups": float(len(state.next))}
        values: dict[str, dict[Client, float]] = {"utility": {}, "gain": {}, "group_utility": {}}
        silent = (
            f"; {_count(absent, 'silent client')} stay with their previous groups" if absent else ""
        )
        if heard.gram is None:
            return replace(note, text=f"{text}, as λ is infinite{silent}", numbers=numbers)
        for group in groups:
            at = heard.at(group)
            mine = utility(
                heard.gram[np.ix_(at, at)], heard.sizes[at], heard.price[at], range(len(at))
            )
            alone = 1.0 - heard.price[at] / heard.sizes[at]
            for name, row in (
                ("utility", mine),
                ("gain", mine - alone),
                ("group_utility", np.full(len(at), mine.sum())),
            ):
                values[name].update(
                    {heard.clients[i]: float(value) for i, value in zip(at, row, strict=True)}
                )
        numbers |= {
            "utility": sum(values["utility"].values()),
            "tradeoff": float(heard.price.mean()),
        }
        said = ""
        if self.cosines == "signals":
            numbers["signal"] = heard.signal
            said = f", of {heard.signal:.0%} signal" if heard.signal < 1 else ", of whole updates"
        rule = (
            f"λ {numbers['tradeoff']:.3g}"
            if self.groups is None
            else f"{_count(self.groups, 'group')} asked for"
        )
        layer = "" if state.layer is None else f", layer {state.layer!r}"
        text += f", {rule}{layer}{said}: utility {numbers['utility']:.3g}"
        if not settled and self.groups is None:
            note = replace(note, otherwise="two groups would have merged")
        if len(groups) > 1:
            parts = [heard.at(group) for group in groups]
            gains = benefits(heard.gram, heard.sizes, heard.price, parts)
            numbers["best_open"] = float(gains.max())
            text += f", the best merge not made would add {numbers['best_open']:.3g}"
            if note.otherwise:
                free = benefits(heard.gram, heard.sizes, 0 * heard.price, parts)
                note = replace(note, criteria=self._criteria(free, gains))
        cosines = (
            {state.layer or "all": torch.from_numpy(cosine(heard.gram)).float()} if changed else {}
        )
        return replace(note, text=text + silent, numbers=numbers, values=values, similarity=cosines)

    def _criteria(self, free: np.ndarray, full: np.ndarray) -> tuple[Criterion, ...]:
        """The comparison of λ with the smallest at which merging two of the groups would add to the utility.

        Utilities, and so the gains of merges, are linear in λ.

        Args:
            free: ``(k, k)``, the gains of the merges at λ = 0.
            full: ``(k, k)``, the gains at the λ of the run.
        """
        off = ~np.eye(len(full), dtype=bool)
        slope = full[off] - free[off]
        rises = slope > 0
        if not rises.any():
            return ()
        least = float(max((-free[off][rises] / slope[rises]).min(), 1.0)) * self.tradeoff
        return (
            Criterion(
                "λ of the next merge",
                least,
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
    return (
        torch.stack([_start(state, group) for group in state.next])
        if state.next
        else state.first[None]
    )


def _start(state: HCCTState, group: tuple[Client, ...]) -> torch.Tensor:
    data = dict.fromkeys((state.row[c] for c in group), 0)
    for client in group:
        data[state.row[client]] += state.sizes.get(client, 0)
    known = {row: n for row, n in data.items() if n} or dict.fromkeys(
        data, 1
    )  # no weight before a first reply
    if len(known) == 1:
        return state.models[next(iter(known))]
    return average(state.models[list(known)], np.array(list(known.values())) / sum(known.values()))


def beginners(state: HCCTState) -> tuple[Client, ...]:
    """Return the clients that train from the first model in the next epoch: all in the first epoch, newcomers later."""
    may = state.waiting if state.sizes else state.clients
    fresh = {
        row: torch.equal(state.models[row], state.first) for row in {state.row[c] for c in may}
    }
    return tuple(c for c in may if fresh[state.row[c]])


def trained(state: HCCTState, replies: Replies) -> HCCTState:
    """Apply the mean update of each group that answered, also for its silent members; the other groups' models stay."""
    if replies.means is not None and replies.mean_counts is not None:
        means, heard = replies.means, replies.mean_counts
    else:
        means, heard = group_means(replies, state.next)
    moved = np.flatnonzero(heard)
    row = {client: place for place, at in enumerate(moved) for client in state.next[at]}
    stale = sorted({state.row[c] for c in state.clients if c not in row})
    place = {old: len(moved) + i for i, old in enumerate(stale)}
    return replace(
        state,
        models=torch.cat([(starts(state) + means)[moved], state.models[stale]]),
        row={c: row[c] if c in row else place[state.row[c]] for c in state.clients},
        groups=state.next,
        sizes={
            **state.sizes,
            **dict(zip(replies.clients, map(int, replies.examples), strict=True)),
        },
    )


# ----------------------------------------------------------------------------------------------------
# Partition (Algorithm 2): merges, and placement of silent clients and newcomers.


Group = list[Client]


@dataclass(frozen=True)
class Comparison:
    """Data for a partition.

    Attributes:
        spoke: clients that answered.
        clients: these, and the silent clients whose cosines are remembered; n in all.
        gram: ``(n, n)``, the Gram matrix of their updates; None if λ is infinite.
        sizes: ``(n,)``, training-set sizes.
        price: ``(n,)``, λ of each client.
        signal: share of signal in their squared norms, as far as noise is known.
    """

    spoke: tuple[Client, ...]
    clients: tuple[Client, ...]
    gram: np.ndarray | None
    sizes: np.ndarray
    price: np.ndarray
    signal: float

    @cached_property
    def place(self) -> Mapping[Client, int]:
        """Client -> its position."""
        return {client: i for i, client in enumerate(self.clients)}

    def at(self, group: Iterable[Client]) -> list[int]:
        """Return the positions of the clients of a group that can be compared."""
        return [self.place[c] for c in group if c in self.place]

    def merged(self, among: Sequence[Client], groups: int | None) -> list[Group]:
        """Partition some of the clients by Algorithm 2.

        Args:
            among: the clients to partition.
            groups: the number of groups; None to merge while there is a gain.
        """
        if self.gram is None or not among:
            return [list(among)] if among else []
        at = self.at(among)
        count = None if groups is None else min(groups, len(at))
        parts = utility_merge(
            self.gram[np.ix_(at, at)], self.sizes[at], self.price[at], groups=count
        )
        return [[among[i] for i in part] for part in parts]

    def best(self, groups: Sequence[Group], newcomer: Client) -> tuple[int, float] | None:
        """Return the group that gains most by a newcomer (eq. 15, 16), and the gain; None if no group can be compared."""
        known = [i for i, group in enumerate(groups) if self.at(group)]
        if not known:
            return None
        if self.gram is None:
            return known[0], np.inf
        (at,) = self.at([newcomer])
        gains = benefit(self.gram, self.sizes, self.price, [self.at(groups[i]) for i in known], at)
        top = int(gains.argmax())
        return known[top], float(gains[top])


def _from_the_first(state: HCCTState, clients: Iterable[Client]) -> HCCTState:
    """Give the first model to ``clients``, as to newcomers."""
    row = {**state.row, **dict.fromkeys(clients, len(state.models))}
    return replace(state, models=torch.cat([state.models, state.first[None]]), row=row)


def follow(parts: list[Group], old: Iterable[Group], sizes: Mapping[Client, int]) -> list[Group]:
    """Add to new groups the clients of old groups that are in none of them.

    Each goes to the new group that has most of the data of its old group. Of equal shares, the
    group with the smallest first member counts. If no client of an old group is in a new group, the
    old group stays together.

    Args:
        parts: the new groups.
        old: the old groups.
        sizes: training-set sizes.
    """
    place = {client: i for i, part in enumerate(parts) for client in part}
    after = [list(part) for part in parts]
    for group in old:
        absent = [c for c in group if c not in place]
        share: dict[int, int] = {}
        for client in group:
            if client in place:
                share[place[client]] = share.get(place[client], 0) + sizes[client]
        if absent and share:
            after[min(share, key=lambda i: (-share[i], parts[i][0]))] += absent
        elif absent:
            after.append(absent)
    return after


# -- notes
# ------------------------------------------------------------------------------------------------------------


def _join_note(
    client: Client, parts: list[Group], found: tuple[int, float] | None, full: bool
) -> Note:
    """The note of a newcomer, which joins the group it benefits most if its criteria hold; ``full``: it joins in any case."""
    if found is None:
        return Note(
            kind="wait",
            effect="waits",
            clients=(client,),
            text=f"client {client} waits: no other client answered",
        )
    place, gain = found
    criteria = (
        ()
        if full
        else (
            Criterion(
                "gain of the best group",
                gain,
                ">",
                0.0,
                met="it joins",
                unmet="it stays alone",
                key="best_gain",
            ),
        )
    )
    if all(one.held for one in criteria):
        change = (
            f"raises most, by {gain:.3g}"
            if gain > 0
            else f"changes least, by {gain:.3g}; groups are as many as asked for"
        )
        text = f"client {client} joins the group of client {min(parts[place])}, whose utility it {change}"
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


def comparable(federation: Federation, keep: tuple[str, ...]) -> Layers:
    """Return the layers that may be compared: those that are sent, without normalisation layers unless there are no others.

    Only the sizes of a layer's tensors are known. A layer of several tensors, all of one size (one
    scale and one shift per channel), counts as a normalisation layer.

    Args:
        federation: the columns of the model's layers and tensors.
        keep: layers that stay at the client.
    """
    layers = {}
    for layer, (start, stop) in federation.columns.items():
        inside = tuple(
            span for span in federation.tensors.values() if start <= span[0] and span[1] <= stop
        )
        if layer not in keep:
            layers[layer] = inside or ((start, stop),)
    plain = {
        name: spans
        for name, spans in layers.items()
        if len(spans) == 1 or len({b - a for a, b in spans}) > 1
    }
    return plain or layers


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
        squares, mean = float(products.diagonal().mean()), max(float(products.mean()), 0.0)
        ratios[layer] = (squares - mean) / max(mean, 1e-12 * squares) if squares > 0 else 0.0
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
        pieces = (torch.var_mean(-updates[:, start:stop], correction=0) for start, stop in spans)
        total = sum(
            float(variance) / float(mean) if float(mean) else math.nan for variance, mean in pieces
        )
        ratios[layer] = total if math.isfinite(total) else -math.inf
    return ratios


def layer_note(clients: tuple[Client, ...], ratios: Mapping[str, float], how: str) -> Note:
    """Describe the choice of the layer to compare; of equal ratios the first layer in the forward pass.

    Args:
        clients: all clients.
        ratios: layer -> ratio.
        how: the rule, ``robust`` or ``paper-code``.
    """
    ranked = sorted(ratios, key=lambda layer: -ratios[layer])
    text = f"clients are compared by layer {ranked[0]!r} from now on, of relative variance {ratios[ranked[0]]:.3g} ({how})"
    if len(ranked) > 1:
        text += f"; next is {ranked[1]!r} with {ratios[ranked[1]]:.3g}"
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
    gram: np.ndarray,
    share: float,
    noise: np.ndarray | None = None,
) -> Memory:
    """Return the memory after an epoch.

    Args:
        memory: the memory before it; None before the first epoch.
        clients: the n clients that answered.
        gram: ``(n, n)``, the Gram matrix of their updates.
        share: weight of an epoch in each later one (β).
        noise: ``(n,)``, the part of the diagonal that is noise; None for zero.
    """
    old = memory.clients if memory is not None else ()
    ids = tuple(sorted({*old, *clients}))
    place = {client: i for i, client in enumerate(ids)}
    products, weights = np.zeros((len(ids), len(ids))), np.zeros((len(ids), len(ids)))
    lengths, noises = np.zeros(len(ids)), np.zeros(len(ids))
    if memory is not None:
        at = [place[c] for c in old]
        products[np.ix_(at, at)], weights[np.ix_(at, at)] = memory.products, memory.weights
        lengths[at], noises[at] = memory.lengths, memory.noise
    at = [place[c] for c in clients]
    both, norm = np.ix_(at, at), np.sqrt(np.maximum(np.diagonal(gram), 0.0))
    products[both] = share * products[both] + gram
    weights[both] = share * weights[both] + np.outer(norm, norm)
    lengths[at] = share * lengths[at] + norm
    noises[at] = share * noises[at] + (0.0 if noise is None else noise)
    return Memory(
        clients=ids,
        products=torch.from_numpy(products),
        weights=torch.from_numpy(weights),
        lengths=torch.from_numpy(lengths),
        noise=torch.from_numpy(noises),
        began=memory.began if memory is not None else (),
        firsts=memory.firsts if memory is not None else None,
    )


def begin(memory: Memory, clients: tuple[Client, ...], updates: torch.Tensor) -> Memory:
    """Add first updates to the memory.

    The cosines of these clients with those that began before them are the cosines of the first
    updates.

    Args:
        memory: the memory, with this epoch in it.
        clients: m clients that have just answered for the first time.
        updates: ``(m, p)``, their updates.
    """
    short = sketch(updates, SKETCH).clone()
    if memory.firsts is None:
        return replace(memory, began=clients, firsts=short)
    place = {client: i for i, client in enumerate(memory.clients)}
    new, old = [place[c] for c in clients], [place[c] for c in memory.began]
    found = (short @ memory.firsts.T).double()
    scale = torch.outer(
        torch.linalg.vector_norm(short, dim=1), torch.linalg.vector_norm(memory.firsts, dim=1)
    ).double()
    products, weights = memory.products.clone(), memory.weights.clone()
    for table, values in ((products, found), (weights, scale)):
        table[np.ix_(new, old)] = values
        table[np.ix_(old, new)] = values.T
    firsts = torch.cat([memory.firsts, short])
    return replace(
        memory, products=products, weights=weights, began=(*memory.began, *clients), firsts=firsts
    )


def recall(memory: Memory, heard: Collection[Client]) -> tuple[tuple[Client, ...], np.ndarray]:
    """Return the clients that can be compared, and the Gram matrix of their remembered cosines and mean norms.

    These are the clients that have just answered, and the silent clients whose cosines with all
    others in the result are known. A mean norm is weighted by the norms themselves. After one epoch
    the result is that epoch's Gram matrix.

    Args:
        memory: the memory.
        heard: clients that have just answered.

    Returns:
        The n clients, sorted, and the Gram matrix ``(n, n)``.
    """
    products, weights, lengths = (
        memory.products.numpy(),
        memory.weights.numpy(),
        memory.lengths.numpy(),
    )
    known, spoke = weights > 0, set(heard)
    taken = [i for i, client in enumerate(memory.clients) if client in spoke]
    for i, client in enumerate(memory.clients):
        if client not in spoke and known[i, [*taken, i]].all():
            taken.append(i)
    taken.sort()
    both = np.ix_(taken, taken)
    cosines = np.divide(
        products[both], weights[both], out=np.zeros((len(taken), len(taken))), where=known[both]
    )
    norm = np.divide(np.diagonal(products), lengths, out=np.zeros(len(lengths)), where=lengths > 0)[
        taken
    ]
    return tuple(memory.clients[i] for i in taken), np.clip(cosines, -1.0, 1.0) * np.outer(
        norm, norm
    )


def signal_in(memory: Memory, clients: Collection[Client]) -> float:
    """Return the share of signal in the squared norms of the clients' updates, over all their epochs."""
    at = [i for i, client in enumerate(memory.clients) if client in clients]
    return share_of_signal(memory.products.numpy().diagonal()[at], memory.noise.numpy()[at])


def share_of_signal(squares: np.ndarray, noise: np.ndarray) -> float:
    """Return the share of a sum of squared norms that is not noise.

    Args:
        squares: ``(n,)``, squared norms.
        noise: ``(n,)``, the part of each that is noise.

    Returns:
        The share; 1 if no signal is left, because then only cosines of whole updates can be used.
    """
    total = float(squares.sum())
    share = 1.0 - float(noise.sum()) / total if total > 0 else 1.0
    return share if share > 0 else 1.0


def forget(memory: Memory | None, gone: Collection[Client]) -> Memory | None:
    """Return the memory without clients that have left."""
    if memory is None:
        return None
    stay = [i for i, client in enumerate(memory.clients) if client not in gone]
    began = [i for i, client in enumerate(memory.began) if client not in gone]
    return (
        Memory(
            clients=tuple(memory.clients[i] for i in stay),
            products=memory.products[stay][:, stay],
            weights=memory.weights[stay][:, stay],
            lengths=memory.lengths[stay],
            noise=memory.noise[stay],
            began=tuple(memory.began[i] for i in began),
            firsts=memory.firsts[began] if memory.firsts is not None and began else None,
        )
        if stay
        else None
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


def shared(replies: Replies) -> np.ndarray:
    """Return the inner products ``a_i · b_i`` of each client's halves, ``(n,)``; NaN for a client without."""
    found = np.full(len(replies.clients), np.nan)
    if replies.halves is not None:
        halved = replies.halves.clients
        found[replies.positions(halved)] = replies.halves.gram.diagonal(len(halved))
    return found


def noise_in(matrix: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """Estimate the noise in the squared norms of updates.

    A client without halves gets the same share of noise as all others together.

    Args:
        matrix: ``(n, n)``, the Gram matrix of the updates.
        shared: ``(n,)``, the inner products of each client's halves; NaN for clients without.

    Returns:
        ``(n,)``, the part of each squared norm that is noise; 0 if no client has halves.
    """
    square, known = matrix.diagonal(), ~np.isnan(shared)
    if not known.any():
        return np.zeros(len(matrix))
    noise = square - np.where(known, shared, 0.0)
    total = float(square[known].sum())
    return np.where(
        known, noise, square * (float(noise[known].sum()) / total if total > 0 else 0.0)
    )


def without_noise(matrix: np.ndarray, signal: float) -> np.ndarray:
    """Remove the noise from the diagonal of a Gram matrix.

    The remaining matrix may have negative eigenvalues. In a group at its optimum this would give
    means with a negative squared norm, and unbounded utilities. So cosines are limited to [-1, 1],
    and directions of negative eigenvalues, which are noise, are left out. If there is no noise
    except that of float32, the matrix does not change.

    Args:
        matrix: ``(n, n)``, the Gram matrix of the updates.
        signal: the share of signal in its diagonal.

    Returns:
        ``(n, n)``, a Gram matrix of vectors close to the signals.
    """
    if signal > 1.0 - 1e-6:
        return matrix
    norm = np.sqrt(np.maximum(matrix.diagonal(), 0.0))
    lengths = signal * np.outer(norm, norm)
    cosines = np.clip(
        np.divide(matrix, lengths, out=np.eye(len(norm)), where=lengths > 0), -1.0, 1.0
    )
    np.fill_diagonal(cosines, 1.0)
    squares, axes = np.linalg.eigh(cosines)
    rows = axes * np.sqrt(np.maximum(squares, 0.0))
    rows /= np.linalg.norm(
        rows, axis=1, keepdims=True
    )  # unit length again; none is zero, as each square was 1 or more
    return np.asarray(rows @ rows.T * lengths)


def _with_firsts(memory: Memory, first: Replies, columns: slice, size: int | None) -> Memory:
    """Add first updates to the memory; with ``size``, as sketches of that size (HCCT-E first needs all layers)."""
    if not first.clients:
        return memory
    rows = first.all_updates[:, columns]
    return begin(memory, first.clients, rows if size is None else sketch(rows, size))
