"""HCCT's groups from one epoch to the next: who merges, where silent clients and newcomers go, and the reasons in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import benefit, benefits, cosine, norms, utility, utility_merge
from coterie.core import Client, Groups, Note, Training, as_groups, state
from coterie.methods.hcct_layers import Layers
from coterie.methods.hcct_memory import Memory

if TYPE_CHECKING:
    from coterie.methods.hcct import HCCT

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
class Heard:
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


def regroup(method: HCCT, state: HCCTState, heard: Heard, notes: tuple[Note, ...]) -> HCCTState:
    """The groups of the next epoch: a partition of those who were heard, the others, then newcomers one by one."""
    settled, spoke = method.settled(state), set(heard.spoke)
    one_by_one = (settled or method.newcomers == "benefit") and state.waiting != state.clients
    apart = state.waiting if one_by_one else ()
    new = [c for c in apart if c in spoke]
    among = [c for c in heard.clients if c not in apart]
    missed = set(state.clients) - spoke if method.one_shot and not state.partitioned and among else set()
    old = [[c for c in group if c not in new and c not in missed] for group in state.next]
    parts = [group for group in old if group] if settled else follow(heard.merged(among, method.groups), old, state.sizes)
    if missed:
        state, parts = _from_the_first(state, missed), [*parts, *([c] for c in sorted(missed))]
    waiting = missed | set(state.waiting) - (spoke - set(new))
    joined = []
    for client in new:
        found = heard.best(parts, client)
        waiting -= {client} if found else set()
        full = method.groups is not None and len(parts) >= method.groups  # a number asked for is not exceeded
        joins = found is not None and (full or found[1] > 0)
        joined.append(_join_note(client, parts, found, joins))
        if found and joins:
            parts[found[0]].append(client)
        else:
            parts.append([client])
    following = as_groups(parts)
    state = replace(state, next=following, partitioned=state.partitioned or bool(among), waiting=tuple(sorted(waiting)))
    return replace(state, notes=(*notes, *joined, partition_note(method, state, heard)))


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


def partition_note(method: HCCT, state: HCCTState, heard: Heard) -> Note:
    """The next groups and what they are worth; their parts and the cosines where they are not those that trained."""
    groups = [group for group in state.next if heard.at(group)]
    changed = state.next != state.groups
    absent = len(state.clients) - len(heard.clients)
    text = f"{_count(len(state.next), 'group')} of {_count(len(state.clients), 'client')}"
    note = Note(kind="partition", clients=state.clients, text=text, parts=state.next if changed else (), heard=heard.clients)
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
    if method.cosines == "signals":
        numbers["signal"] = heard.signal
        said = f", of {heard.signal:.0%} signal" if heard.signal < 1 else ", of whole updates"
    if changed:  # all that the utility of any client in any group is made of
        norms_, ids = norms(heard.gram), heard.clients
        values |= {
            name: dict(zip(ids, map(float, row), strict=True))
            for name, row in (("norm", norms_), ("size", heard.sizes), ("price", heard.price))
        }
    rule = f"λ {numbers['tradeoff']:.3g}" if method.groups is None else f"{_count(method.groups, 'group')} asked for"
    text += f", {rule}{f', layer {state.layer!r}' if state.layer is not None else ''}{said}: utility {numbers['utility']:.3g}"
    if len(groups) > 1:
        numbers["best_open"] = float(benefits(heard.gram, heard.sizes, heard.price, [heard.at(g) for g in groups]).max())
        text += f", the best merge not made would add {numbers['best_open']:.3g}"
    cosines = {state.layer or "all": torch.from_numpy(cosine(heard.gram)).float()} if changed else {}
    return replace(note, text=text + silent, numbers=numbers, values=values, similarity=cosines)


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
