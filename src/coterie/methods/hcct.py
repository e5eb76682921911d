"""HCCT: in every epoch, clients train in the groups whose members gain most from each other; the groups are made anew.

Y. Sun, M. Kountouris, J. Zhang, "How to Collaborate: Towards Maximizing the Generalization Performance in Cross-Silo
Federated Learning", arXiv 2401.13236: Algorithms 1 (training) and 2 (client partition), equations 8 to 20; the variants
HCCT-E (section V, "efficient implementation") and HCCT-P (section VII, with the personalisation layers of M. G.
Arivazhagan et al., arXiv 1912.00818).

The utility of client n in group G is ``U_n(G) = cos(g_n, ḡ_G) - λ_n / N_G``; see :mod:`coterie.clustering.utility`.

Deviations
- λ is a share of the mean training-set size by default (``scale``), for it lives on the scale of these sizes: the paper
  has one absolute number per data set. Its constant Γ cancels in every merge and is left out.
- The cosine sees trainable parameters alone, and the running statistics of BatchNorm are averaged like parameters. In the
  code published with the paper, counters of batches drown the similarity, and a group has the statistics of client 0.
- HCCT-E takes the relative variance across clients of whole layers (``robust``). The published code's variance is over
  clients and coordinates together, and divided by a signed mean near zero (``paper-code``). The layer is found in the
  first epoch, which counts; the published code throws a round of probing away. Normalisation layers do not compete.
- HCCT-P compares the layers that travel, and heads never leave their client. The published code averages the heads of a
  group's members before each epoch.
- The utility that is told is that of the merge. The published code's report counts a client's own data twice in a group.
- The cosines are means over epochs (``memory``), for near an optimum those of one epoch are noise, and a newcomer's first
  update is compared with the others' first ones. 0 is the paper.
- ``cosines="signals"`` asks for updates of two halves of everybody's data, and takes the noise that they tell out of the
  squared norms (:mod:`coterie.methods.hcct`). These epochs cost twice the upload and train half as far, so groups
  are made in every fourth only (``partition_every``), while a newcomer waits, and until everybody has been heard once; in
  the others means suffice. HCCT-E chooses its layer by whole updates, and the cosines of that epoch are theirs.
- The paper has every client in every epoch. Here those that answered are partitioned, with those silent ones whose cosines
  with all of them are remembered. The others go with the new group that has most data of those they were with. Silent
  clients have the model of their group whenever it moves, and keep their weight in the start of their next group.
- With ``one_shot`` all clients are asked in the first epoch, and those silent in it find their group like newcomers.
- ``newcomers="benefit"`` follows the paper's text (equations 15 and 16); ``partition`` is what the published code does.
  Where a number of ``groups`` is asked for and reached, a newcomer joins the best of them also where it gains nothing.
- With a memory, a newcomer trains its first epoch with the learning rate of the first epoch of all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import benefit, benefits, cosine, gram, norms, sketch, utility, utility_merge
from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Groups,
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
)  # fmt: skip
from coterie.methods._half_steps import of_equal_steps
from coterie.settings import SettingError, check, setting

# ----------------------------------------------------------------------------------------------------
# HCCT-E: which layer to compare, that of the largest relative variance (arXiv 2401.13236, section V, equation 19).


Layers = Mapping[str, tuple[tuple[int, int], ...]]
"""layer -> the columns of each of its tensors, one after the other."""


def comparable(federation: Federation, keep: tuple[str, ...]) -> Layers:
    """The layers that compete: those that travel, less normalisation layers, unless there are no others.

    What is told of a layer is the sizes of its tensors. One scale and one shift per channel are of equal size.
    """
    layers = {}
    for layer, (start, stop) in federation.columns.items():
        inside = tuple(span for span in federation.tensors.values() if start <= span[0] and span[1] <= stop)
        if layer not in keep:
            layers[layer] = inside or ((start, stop),)
    plain = {name: spans for name, spans in layers.items() if len(spans) == 1 or len({b - a for a, b in spans}) > 1}
    return plain or layers


def relative_variances(updates: Tensor, layers: Layers) -> dict[str, float]:
    """layer -> ``mean_n ‖g_n - ḡ‖² / ‖ḡ‖²`` of the clients' updates ``(n, d)`` in that layer, ḡ their plain mean.

    Both follow from the layer's Gram matrix: the mean of its diagonal less its mean, and its mean. A mean that cancels
    counts as 1e-12 of the squared norms, so that no unit matters; 0 where nothing moved.
    """
    ratios = {}
    for layer, spans in layers.items():
        products = gram(updates, columns=(spans[0][0], spans[-1][1]))
        squares, mean = float(products.diagonal().mean()), max(float(products.mean()), 0.0)
        ratios[layer] = (squares - mean) / max(mean, 1e-12 * squares) if squares > 0 else 0.0
    return ratios


def paper_code_ratios(updates: Tensor, layers: Layers) -> dict[str, float]:
    """layer -> variance / mean of its accumulated gradients, weight and bias apart and added, as in the published code.

    Over all entries of all clients together. The mean is signed, so a layer may rank last for being negative; -inf where
    a ratio is undefined. Gradients point against updates, and the learning rate scales all ratios alike.
    """
    ratios = {}
    for layer, spans in layers.items():
        pieces = (torch.var_mean(-updates[:, start:stop], correction=0) for start, stop in spans)
        total = sum(float(variance) / float(mean) if float(mean) else math.nan for variance, mean in pieces)
        ratios[layer] = total if math.isfinite(total) else -math.inf
    return ratios


def layer_note(clients: tuple[Client, ...], ratios: Mapping[str, float], how: str) -> Note:
    """Which layer is compared from now on; of equal ratios the first in the forward pass."""
    ranked = sorted(ratios, key=lambda layer: -ratios[layer])
    text = f"clients are compared by layer {ranked[0]!r} from now on, of relative variance {ratios[ranked[0]]:.3g} ({how})"
    if len(ranked) > 1:
        text += f"; next is {ranked[1]!r} with {ratios[ranked[1]]:.3g}"
    return Note(kind="layer", clients=clients, text=text, numbers=ratios)


# ----------------------------------------------------------------------------------------------------
# HCCT's memory (ours): cosines of updates over epochs, so that the noise of one epoch breaks no group.
#
# Near a group's optimum its mean update vanishes: members' updates are then noise or point away from each other, and the
# definition dissolves a group that should stay. The cosine of two clients is therefore the mean of their cosines in the
# epochs in which both were heard, each weighted by the norms of the two updates, and by β for every later one of them.
# What clients said while they were far from their optimum counts most.
#
# Of signals (:mod:`~coterie.methods.hcct`) that mean is divided by the share of signal in the squared norms of all who
# are compared, over all their epochs: the correction of a correlation for noise. One client's share, or one epoch's, is too
# noisy itself: with 40 examples a client, it came out below zero for a quarter of the clients.
#
# First updates, from the first model, are remembered as well, shortened to :data:`SKETCH` numbers: those of the first epoch
# and of newcomers. A newcomer's first update is compared with them, and not with what these clients say of a model that it has
# never seen. Who was not heard in the first epoch has none.


SKETCH = 4096
"""Numbers kept of a first update: its cosines are off by 0.022 at most (a standard deviation)."""


@state("hcct.memory")
class Memory:
    """clients (n,): ids. products ``(n, n)``: ``Σ β^age <g_i, g_j>`` over the epochs in which both were heard; weights
    ``(n, n)``: ``Σ β^age ‖g_i‖ ‖g_j‖`` over the same, 0 for clients never compared; lengths (n,): ``Σ β^age ‖g_i‖``. noise
    (n,): ``Σ β^age`` of what noise adds to ``‖g_i‖²``, 0 in epochs in which that is not known.

    began: ids of those whose first updates, from the first model, are the rows of firsts, at most ``SKETCH`` wide.
    """

    clients: tuple[Client, ...]
    products: Tensor
    weights: Tensor
    lengths: Tensor
    noise: Tensor
    began: tuple[Client, ...] = ()
    firsts: Tensor | None = None


def remember(
    memory: Memory | None, clients: tuple[Client, ...], gram: np.ndarray, share: float, noise: np.ndarray | None = None
) -> Memory:
    """The memory after an epoch in which ``clients`` were heard, with the Gram matrix ``(n, n)``; ``share`` is β.

    noise ``(n,)``: what of the diagonal is noise; none of it where ``None``.
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
        clients=ids, products=torch.from_numpy(products), weights=torch.from_numpy(weights),
        lengths=torch.from_numpy(lengths), noise=torch.from_numpy(noises),
        began=memory.began if memory is not None else (), firsts=memory.firsts if memory is not None else None,
    )  # fmt: skip


def begin(memory: Memory, clients: tuple[Client, ...], updates: Tensor) -> Memory:
    """The memory that knows the first updates ``(m, p)`` of ``clients``, who have just been heard for the first time.

    Their cosines with those who began before them are those of the first updates.
    """
    short = sketch(updates, SKETCH).clone()
    if memory.firsts is None:
        return replace(memory, began=clients, firsts=short)
    place = {client: i for i, client in enumerate(memory.clients)}
    new, old = [place[c] for c in clients], [place[c] for c in memory.began]
    found = (short @ memory.firsts.T).double()
    scale = torch.outer(torch.linalg.vector_norm(short, dim=1), torch.linalg.vector_norm(memory.firsts, dim=1)).double()
    products, weights = memory.products.clone(), memory.weights.clone()
    for table, values in ((products, found), (weights, scale)):
        table[np.ix_(new, old)] = values
        table[np.ix_(old, new)] = values.T
    firsts = torch.cat([memory.firsts, short])
    return replace(memory, products=products, weights=weights, began=(*memory.began, *clients), firsts=firsts)


def recall(memory: Memory, heard: Collection[Client]) -> tuple[tuple[Client, ...], np.ndarray]:
    """Clients, sorted, and the Gram matrix ``(n, n)`` of their remembered cosines and mean norms.

    They are those just heard, and of the silent those whose cosine with all others taken is known. A mean norm is weighted
    by the norms themselves. After one epoch this is that epoch's Gram matrix.
    """
    products, weights, lengths = memory.products.numpy(), memory.weights.numpy(), memory.lengths.numpy()
    known, spoke = weights > 0, set(heard)
    taken = [i for i, client in enumerate(memory.clients) if client in spoke]
    for i, client in enumerate(memory.clients):
        if client not in spoke and known[i, [*taken, i]].all():
            taken.append(i)
    taken.sort()
    both = np.ix_(taken, taken)
    cosines = np.divide(products[both], weights[both], out=np.zeros((len(taken), len(taken))), where=known[both])
    norm = np.divide(np.diagonal(products), lengths, out=np.zeros(len(lengths)), where=lengths > 0)[taken]
    return tuple(memory.clients[i] for i in taken), np.clip(cosines, -1.0, 1.0) * np.outer(norm, norm)


def signal_in(memory: Memory, clients: Collection[Client]) -> float:
    """The share of signal in what ``clients`` have said in all their epochs."""
    at = [i for i, client in enumerate(memory.clients) if client in clients]
    return share_of_signal(memory.products.numpy().diagonal()[at], memory.noise.numpy()[at])


def share_of_signal(squares: np.ndarray, noise: np.ndarray) -> float:
    """Of squared norms ``(n,)``, of which ``noise`` ``(n,)`` is noise: what is left of their sum. 1 where that is nothing, as
    cosines can then be of nothing but whole updates."""
    total = float(squares.sum())
    share = 1.0 - float(noise.sum()) / total if total > 0 else 1.0
    return share if share > 0 else 1.0


def forget(memory: Memory | None, gone: Collection[Client]) -> Memory | None:
    """The memory without clients that have left."""
    if memory is None:
        return None
    stay = [i for i, client in enumerate(memory.clients) if client not in gone]
    began = [i for i, client in enumerate(memory.began) if client not in gone]
    return Memory(
        clients=tuple(memory.clients[i] for i in stay), products=memory.products[stay][:, stay],
        weights=memory.weights[stay][:, stay], lengths=memory.lengths[stay],
        noise=memory.noise[stay], began=tuple(memory.began[i] for i in began),
        firsts=memory.firsts[began] if memory.firsts is not None and began else None,
    ) if stay else None  # fmt: skip


# ----------------------------------------------------------------------------------------------------
# What HCCT's partitions rest on: the inner products of updates as they were heard, or of what is signal in them.
#
# Noise makes cosines smaller: ``‖g_i‖²`` holds all of a client's own, and ``<g_i, g_j>`` none, as two clients share no noise.
# From updates a_i, b_i of two halves of its data, whose mean is g_i, noise adds ``‖(a_i - b_i) / 2‖² = ‖g_i‖² - a_i · b_i``,
# as the halves share none either.


def _products(replies: Replies, columns: slice) -> np.ndarray:
    if replies.gram is not None:
        return replies.gram
    assert replies.updates is not None
    return gram(replies.updates, columns=columns)


def noise_in(matrix: np.ndarray, halves: np.ndarray | None) -> np.ndarray:
    """What noise adds to each squared norm of a Gram matrix ``(n, n)`` of updates, ``(n,)``, by that of their ``halves``
    ``(2n, 2n)``: for who has none the same share as of all others together, and 0 where nobody has."""
    if halves is None or np.isnan(halves.diagonal()).all():
        return np.zeros(len(matrix))
    square, shared = matrix.diagonal(), halves.diagonal(len(matrix))  # a_i · b_i
    known = ~np.isnan(shared)
    noise = square - np.where(known, shared, 0.0)
    total = float(square[known].sum())
    return np.where(known, noise, square * (float(noise[known].sum()) / total if total > 0 else 0.0))


def without_noise(matrix: np.ndarray, signal: float) -> np.ndarray:
    """A Gram matrix ``(n, n)`` of updates with the share ``signal`` of its diagonal, of the vectors that come near it.

    What is left need be no vectors' Gram matrix: in a group at its optimum it would have means shorter than nothing, and
    utilities without bound. So cosines are cut to [-1, 1], and directions of negative squares, which are noise, left out.
    Where there is no noise but float32's, nothing changes.
    """
    if signal > 1.0 - 1e-6:
        return matrix
    norm = np.sqrt(np.maximum(matrix.diagonal(), 0.0))
    lengths = signal * np.outer(norm, norm)
    cosines = np.clip(np.divide(matrix, lengths, out=np.eye(len(norm)), where=lengths > 0), -1.0, 1.0)
    np.fill_diagonal(cosines, 1.0)
    squares, axes = np.linalg.eigh(cosines)
    rows = axes * np.sqrt(np.maximum(squares, 0.0))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)  # of unit length again; none is zero, as each square was 1 or more
    return np.asarray(rows @ rows.T * lengths)


def _with_firsts(memory: Memory, first: Replies, columns: slice, size: int | None) -> Memory:
    """size: of the sketches to be made, where the rows are none yet, as HCCT-E had to see all layers."""
    if not first.clients:
        return memory
    assert first.updates is not None
    rows = first.updates[:, columns]
    return begin(memory, first.clients, rows if size is None else sketch(rows, size))


# ----------------------------------------------------------------------------------------------------
# HCCT's groups from one epoch to the next: who merges, where silent clients and newcomers go, and the reasons in words.


Group = list[Client]


@state("hcct")
class HCCTState:
    """first ``(d,)``: the model that everyone starts from. models ``(k, d)`` and row: who has which model now. groups: who
    trained together last; next: who does in the coming epoch. sizes: training-set sizes of all that were ever heard.

    layers: those that may be compared; layer: the one that is, None for all; keep: those that stay at the client.
    partitioned: whether there has been a partition. waiting: who finds its group when it is next heard: newcomers, and with
    ``one_shot`` those silent in the partition. memory: of cosines, where the method has one. epoch: those completed in which
    anybody was heard. training: the experiment's.
    """

    clients: tuple[Client, ...]
    first: Tensor
    models: Tensor
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
        """What similarity sees; the columns of layers that stay at the client are zero in every update."""
        if self.layer is None:
            return slice(0, self.parameters)
        spans = self.layers[self.layer]
        return slice(spans[0][0], spans[-1][1])


@dataclass(frozen=True)
class Comparison:
    """What a partition rests on. spoke: who answered. clients: they, and silent ones whose cosines are remembered.

    gram ``(n, n)`` of their updates, None where λ is infinite. sizes ``(n,)``: training-set sizes. price ``(n,)``: λ of
    each. signal: the share of their squared norms that is no noise, as far as noise is known.
    """

    spoke: tuple[Client, ...]
    clients: tuple[Client, ...]
    gram: np.ndarray | None
    sizes: np.ndarray
    price: np.ndarray
    signal: float

    @cached_property
    def place(self) -> Mapping[Client, int]:
        return {client: i for i, client in enumerate(self.clients)}

    def at(self, group: Iterable[Client]) -> list[int]:
        """Positions of those of a group that can be compared."""
        return [self.place[c] for c in group if c in self.place]

    def merged(self, among: Sequence[Client], groups: int | None) -> list[Group]:
        """Algorithm 2 on some of the clients."""
        if self.gram is None or not among:
            return [list(among)] if among else []
        at = self.at(among)
        count = None if groups is None else min(groups, len(at))
        parts = utility_merge(self.gram[np.ix_(at, at)], self.sizes[at], self.price[at], groups=count)
        return [[among[i] for i in part] for part in parts]

    def best(self, groups: Sequence[Group], newcomer: Client) -> tuple[int, float] | None:
        """The group that gains most by a newcomer (eq. 15, 16), and how much; None: no group can be compared with it."""
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
    """``clients`` have the first model, as newcomers do."""
    row = {**state.row, **dict.fromkeys(clients, len(state.models))}
    return replace(state, models=torch.cat([state.models, state.first[None]]), row=row)


def follow(parts: list[Group], old: Iterable[Group], sizes: Mapping[Client, int]) -> list[Group]:
    """``parts`` and those of the old groups that are in none: each goes where most data of its old group went.

    Where a whole group is in none, it stays together. Of equal shares, the part with the smallest first member counts.
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


# -- reasons ----------------------------------------------------------------------------------------------------------


def _join_note(client: Client, parts: list[Group], found: tuple[int, float] | None, joins: bool) -> Note:
    if found is None:
        return Note(kind="wait", clients=(client,), text=f"client {client} waits: nobody else was heard")
    place, gain = found
    if joins:
        change = f"raises most, by {gain:.3g}" if gain > 0 else f"changes least, by {gain:.3g}; groups are as many as asked for"
        text = f"client {client} joins the group of client {min(parts[place])}, whose utility it {change}"
    else:
        text = f"client {client} stays alone: in the best of the groups it would change utility by {gain:.3g}"
    return Note(kind="join", clients=(client,), text=text, numbers={"gain": gain})


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# ----------------------------------------------------------------------------------------------------
# HCCT's models: what a group starts from, and what became of it (arXiv 2401.13236, Algorithm 1, equations 3 and 6).


def starts(state: HCCTState) -> Tensor:
    """What each coming group trains from, ``(k, d)``: the mean of its members' models, by their training data."""
    return torch.stack([_start(state, group) for group in state.next]) if state.next else state.first[None]


def _start(state: HCCTState, group: tuple[Client, ...]) -> Tensor:
    data = dict.fromkeys((state.row[c] for c in group), 0)
    for client in group:
        data[state.row[client]] += state.sizes.get(client, 0)
    known = {row: n for row, n in data.items() if n} or dict.fromkeys(data, 1)  # never heard: of no weight
    if len(known) == 1:
        return state.models[next(iter(known))]
    return average(state.models[list(known)], np.array(list(known.values())) / sum(known.values()))


def beginners(state: HCCTState) -> tuple[Client, ...]:
    """Who trains from the first model in the coming epoch: everyone in the first, newcomers later."""
    may = state.waiting if state.sizes else state.clients
    fresh = {row: torch.equal(state.models[row], state.first) for row in {state.row[c] for c in may}}
    return tuple(c for c in may if fresh[state.row[c]])


def trained(state: HCCTState, replies: Replies) -> HCCTState:
    """Each group that was heard has moved by its mean update, silent members too; the models of the others stay."""
    if replies.means is not None and replies.heard is not None:
        means, heard = replies.means, replies.heard
    else:
        means, heard = group_means(replies, state.next)
    moved = np.flatnonzero(heard)
    row = {client: place for place, at in enumerate(moved) for client in state.next[at]}
    stale = sorted({state.row[c] for c in state.clients if c not in row})
    place = {old: len(moved) + i for i, old in enumerate(stale)}
    return replace(
        state, models=torch.cat([(starts(state) + means)[moved], state.models[stale]]),
        row={c: row[c] if c in row else place[state.row[c]] for c in state.clients}, groups=state.next,
        sizes={**state.sizes, **dict(zip(replies.clients, map(int, replies.examples), strict=True))},
    )  # fmt: skip


LAYERS = ("all", "robust", "paper-code")
_LAYER = "what cosines are taken of: all layers; or one, chosen after the first epoch: robust, or as in the paper-code"
_PERSONAL = "number of last layers that stay at their client (HCCT-P)"


@dataclass(frozen=True, kw_only=True)
class HCCT:
    """In every epoch, the groups whose members gain most from each other: data against unlikeness."""

    name: ClassVar[str] = "hcct"

    tradeoff: float = setting(0.7, "price of little data (λ), on the chosen scale; 0: all alone, inf: one group", ge=0)
    scale: str = setting(
        "mean-size", "λ is a share of the mean training-set size (ours), or absolute, or a share of each client's own size",
        choices=("mean-size", "absolute", "per-client"),
    )  # fmt: skip
    groups: int | None = setting(None, "number of groups, in place of merging while there is a gain", ge=1)
    one_shot: bool = setting(False, "partition once, after the first epoch")
    layer: str = setting("all", _LAYER, choices=LAYERS)
    personal: int = setting(0, _PERSONAL, ge=0)
    newcomers: str = setting(
        "benefit", "after a round alone, a new client joins the group of most benefit, or takes part in the next partition",
        choices=("benefit", "partition"),
    )  # fmt: skip
    memory: float = setting(
        0.95, "weight of an epoch's cosines in each later one (β), 0: none, as in the paper; ours", ge=0, le=1
    )
    cosines: str = setting(
        "updates", "what cosines are of: updates, as in the paper; or the signals in them, by halves of clients' data; ours",
        choices=("updates", "signals"),
    )  # fmt: skip
    partition_every: int | None = setting(
        None, "epochs from one partition to the next; none: 1, as in the paper, or 4 with signals, which cost; ours", ge=1
    )
    fraction: float = setting(1.0, "share of each group's clients asked in an epoch, at least one; ours", gt=0, le=1)
    sketch: int | None = setting(
        None, "take cosines of sketches of so many numbers; updates are not kept then; ours", multiple=4
    )

    def __post_init__(self) -> None:
        check(self)
        name = type(self).__name__
        if self.groups is not None and np.isinf(self.tradeoff):
            raise SettingError(f"{name}.groups {self.groups} needs a finite tradeoff, got inf, which is one group")

    @property
    def asks(self) -> tuple[Task, ...]:
        """What clients are asked for in an epoch whose groups are compared, if not in the first."""
        return (Task(offered=(0,), halves=self.cosines == "signals" and not np.isinf(self.tradeoff)),)

    @property
    def invariant(self) -> str:
        """Under which maps of updates its groups stay what they are: the published code's layer looks at their signs."""
        return "permutation" if self.layer == "paper-code" else "rotation"

    # -- the contract ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> HCCTState:
        name, clients, layers = type(self).__name__, federation.clients, tuple(federation.columns)
        if self.groups is not None and self.groups > len(clients):
            raise SettingError(f"{name}.groups must be at most the {len(clients)} clients, got {self.groups}")
        if self.personal > len(layers):
            raise SettingError(f"{name}.personal must be at most the {len(layers)} layers of the model, got {self.personal}")
        keep = layers[len(layers) - self.personal :]
        first = federation.draw(0)
        return HCCTState(
            clients=clients, first=first, models=first[None], row=dict.fromkeys(clients, 0), groups=(clients,),
            next=(clients,), parameters=federation.parameters.stop, keep=keep,
            layers={} if self.layer == "all" else comparable(federation, keep), training=federation.training,
        )  # fmt: skip

    def plan(self, state: HCCTState, cohort: Cohort) -> Plan:
        share = 1.0 if self.one_shot and not state.partitioned else self.fraction
        compares = not (np.isinf(self.tradeoff) or self._rests(state))
        new, opens = set(self._remembered_firsts(state)), self.layer_open(state)
        usual = Task(offered=(0,), keep=state.keep)
        if self.cosines == "signals" and compares and not opens:
            usual = replace(usual, halves=True, training=of_equal_steps(state.training, state.sizes.values()))
        tasks = {}
        for row, group in enumerate(state.next):
            # A first update is compared with those of the first epoch, so it has that epoch's learning rate.
            task = replace(usual, offered=(row,), lr_round=0 if new.issuperset(group) else None)
            tasks.update(dict.fromkeys(cohort.sample(group, share), task))
        if opens:
            return Plan(models=starts(state), tasks=tasks, need="rows")
        if not compares:
            return Plan(models=starts(state), tasks=tasks, need="mean")
        need: Literal["rows", "gram"] = "rows" if new else "gram"  # first updates are remembered as sketches
        return Plan(models=starts(state), tasks=tasks, need=need, columns=state.columns, sketch=self.sketch)

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
        """Each newcomer trains from the first model, in a group of its own."""
        new = tuple(sorted(set(clients) - set(state.clients)))
        alone = [(c,) for c in new]
        return replace(
            state, clients=joined(state.clients, new), models=torch.cat([state.models, state.first[None]]),
            row={**state.row, **dict.fromkeys(new, len(state.models))}, groups=as_groups([*state.groups, *alone]),
            next=as_groups([*state.next, *alone]), waiting=tuple(sorted((*state.waiting, *new))),
        )  # fmt: skip

    def retire(self, state: HCCTState, clients: tuple[Client, ...]) -> HCCTState:
        gone = set(clients)
        stay = without(state.clients, gone)
        left = lambda groups: as_groups(g for g in ([c for c in group if c not in gone] for group in groups) if g)  # noqa: E731
        return replace(
            state, clients=stay, row={c: state.row[c] for c in stay}, groups=left(state.groups), next=left(state.next),
            sizes={c: n for c, n in state.sizes.items() if c not in gone}, waiting=tuple(c for c in state.waiting if c in stay),
            memory=forget(state.memory, gone),
        )  # fmt: skip

    # -- in one step ----------------------------------------------------------------------------------------------------

    def settled(self, state: HCCTState) -> bool:
        """Whether the one partition has been made; it is made anew where all of its clients have gone."""
        return self.one_shot and state.partitioned and state.waiting != state.clients

    def _rests(self, state: HCCTState) -> bool:
        """Whether groups stay what they are in the coming epoch: it is no turn of theirs, nobody waits, all have been heard."""
        every = self.partition_every or (1 if self.cosines == "updates" else 4)
        due = not state.partitioned or state.epoch % every == 0 or not state.sizes.keys() >= set(state.clients)
        return not state.waiting and (self.settled(state) or not due)

    def layer_open(self, state: HCCTState) -> bool:
        return self.layer != "all" and state.layer is None and bool(state.layers) and not np.isinf(self.tradeoff)

    def _with_layer(self, state: HCCTState, replies: Replies) -> tuple[HCCTState, tuple[Note, ...]]:
        """HCCT-E: the layer whose updates differ most between clients, once two or more have been heard (eq. 19)."""
        if not self.layer_open(state) or len(replies.clients) < 2:
            return state, ()
        assert replies.updates is not None
        measured = relative_variances if self.layer == "robust" else paper_code_ratios
        ratios = measured(replies.updates, state.layers)
        note = layer_note(state.clients, ratios, self.layer)
        return replace(state, layer=max(ratios, key=lambda layer: ratios[layer])), (note,)

    def _remembered_firsts(self, state: HCCTState) -> tuple[Client, ...]:
        """Whose coming update will be remembered as its first."""
        return beginners(state) if self.memory and not np.isinf(self.tradeoff) else ()

    def hear(self, state: HCCTState, replies: Replies, new: tuple[Client, ...]) -> tuple[HCCTState, Comparison]:
        """What the next partition rests on, and the state that remembers it. new: whose update was its first."""
        clients, matrix, signal = replies.clients, None, 1.0
        if not np.isinf(self.tradeoff):
            columns = state.columns
            if replies.updates is not None and replies.means is not None:  # sketches of these columns
                columns = slice(0, replies.updates.shape[1])
            matrix = _products(replies, columns)
            noise = noise_in(matrix, replies.halves)
            signal = share_of_signal(matrix.diagonal(), noise)
            if self.memory and not self.layer_open(state):  # what was seen of other columns compares with nothing later
                memory = remember(state.memory, clients, matrix, self.memory, noise)
                memory = _with_firsts(memory, replies.of(new), columns, self.sketch if replies.means is None else None)
                state = replace(state, memory=memory)
                clients, matrix = recall(memory, clients)
                signal = signal_in(memory, clients)
            if self.cosines == "signals":
                matrix = without_noise(matrix, signal)
        sizes = np.array([state.sizes[c] for c in clients], dtype=np.float64)
        unit = sizes if self.scale == "per-client" else np.ones(len(sizes))
        if self.scale == "mean-size":
            unit = unit * np.mean(list(state.sizes.values()))
        return state, Comparison(replies.clients, clients, matrix, sizes, self.tradeoff * unit, signal)

    def regroup(self, state: HCCTState, heard: Comparison, notes: tuple[Note, ...]) -> HCCTState:
        """The groups of the next epoch: a partition of those who were heard, the others, then newcomers one by one."""
        settled, spoke = self.settled(state), set(heard.spoke)
        one_by_one = (settled or self.newcomers == "benefit") and state.waiting != state.clients
        apart = state.waiting if one_by_one else ()
        new = [c for c in apart if c in spoke]
        among = [c for c in heard.clients if c not in apart]
        missed = set(state.clients) - spoke if self.one_shot and not state.partitioned and among else set()
        old = [[c for c in group if c not in new and c not in missed] for group in state.next]
        parts = [group for group in old if group] if settled else follow(heard.merged(among, self.groups), old, state.sizes)
        if missed:
            state, parts = _from_the_first(state, missed), [*parts, *([c] for c in sorted(missed))]
        waiting = missed | set(state.waiting) - (spoke - set(new))
        joined = []
        for client in new:
            found = heard.best(parts, client)
            waiting -= {client} if found else set()
            full = self.groups is not None and len(parts) >= self.groups  # a number asked for is not exceeded
            joins = found is not None and (full or found[1] > 0)
            joined.append(_join_note(client, parts, found, joins))
            if found and joins:
                parts[found[0]].append(client)
            else:
                parts.append([client])
        following = as_groups(parts)
        state = replace(state, next=following, partitioned=state.partitioned or bool(among), waiting=tuple(sorted(waiting)))
        return replace(state, notes=(*notes, *joined, self.partition_note(state, heard)))

    def partition_note(self, state: HCCTState, heard: Comparison) -> Note:
        """The next groups and what they are worth; their parts and the cosines where they are not those that trained."""
        groups = [group for group in state.next if heard.at(group)]
        changed = state.next != state.groups
        absent = len(state.clients) - len(heard.clients)
        text = f"{_count(len(state.next), 'group')} of {_count(len(state.clients), 'client')}"
        note = Note(
            kind="partition", clients=state.clients, text=text, parts=state.next if changed else (), heard=heard.clients
        )
        numbers = {"groups": float(len(state.next)), "answered": float(len(heard.spoke))}
        values: dict[str, dict[Client, float]] = {"utility": {}, "gain": {}, "group_utility": {}}
        silent = f"; {_count(absent, 'silent client')} with those they were with" if absent else ""
        if heard.gram is None:
            return replace(note, text=f"{text}, as λ is infinite{silent}", numbers=numbers)
        for group in groups:
            at = heard.at(group)
            mine = utility(heard.gram[np.ix_(at, at)], heard.sizes[at], heard.price[at], range(len(at)))
            alone = 1.0 - heard.price[at] / heard.sizes[at]
            for name, row in (("utility", mine), ("gain", mine - alone), ("group_utility", np.full(len(at), mine.sum()))):
                values[name].update({heard.clients[i]: float(value) for i, value in zip(at, row, strict=True)})
        numbers |= {"utility": sum(values["utility"].values()), "tradeoff": float(heard.price.mean())}
        said = ""
        if self.cosines == "signals":
            numbers["signal"] = heard.signal
            said = f", of {heard.signal:.0%} signal" if heard.signal < 1 else ", of whole updates"
        if changed:  # all that the utility of any client in any group is made of
            norms_, ids = norms(heard.gram), heard.clients
            values |= {
                name: dict(zip(ids, map(float, row), strict=True))
                for name, row in (("norm", norms_), ("size", heard.sizes), ("price", heard.price))
            }
        rule = f"λ {numbers['tradeoff']:.3g}" if self.groups is None else f"{_count(self.groups, 'group')} asked for"
        text += (
            f", {rule}{f', layer {state.layer!r}' if state.layer is not None else ''}{said}: utility {numbers['utility']:.3g}"
        )
        if len(groups) > 1:
            numbers["best_open"] = float(benefits(heard.gram, heard.sizes, heard.price, [heard.at(g) for g in groups]).max())
            text += f", the best merge not made would add {numbers['best_open']:.3g}"
        cosines = {state.layer or "all": torch.from_numpy(cosine(heard.gram)).float()} if changed else {}
        return replace(note, text=text + silent, numbers=numbers, values=values, similarity=cosines)


@dataclass(frozen=True, kw_only=True)
class HCCTE(HCCT):
    """HCCT that compares one layer alone: the one whose first updates differ most between clients."""

    name: ClassVar[str] = "hcct-e"

    layer: str = setting("robust", _LAYER, choices=LAYERS)


@dataclass(frozen=True, kw_only=True)
class HCCTP(HCCT):
    """HCCT whose clients keep their last layer to themselves: groups share what is below it."""

    name: ClassVar[str] = "hcct-p"

    personal: int = setting(1, _PERSONAL, ge=0)
