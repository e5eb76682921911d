"""ACFL's clustering: groups of similar clients, and where one that comes later belongs. The source is in ``acfl.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import closeness, cosine, cut_dendrogram, dendrogram, groups_of, layer_cosines, layer_grams
from coterie.core import Client, Federation, Note, Replies, as_groups, state, weights
from coterie.settings import SettingError, nearest


@state("acfl.references")
class Seats:
    """What those who come later are compared with. vectors ``(m, p)``: the compared columns of ``clients``, as they were
    trained in the clustering exchange of ``round``, from the model ``first`` ``(d,)``. home: the group each went to."""

    round: int
    first: Tensor
    clients: tuple[Client, ...]
    home: tuple[int, ...]
    vectors: Tensor


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How groups are made, as ACFL's settings have it, and what they are made of.

    columns: of every layer; compared: the layers that count; updates: compare these in place of weights.
    """

    threshold: float | None
    groups: int | None
    linkage: str
    updates: bool
    columns: Mapping[str, tuple[int, int]]
    compared: tuple[str, ...]

    def seen(self, first: Tensor, updates: Tensor) -> Tensor:
        """``(n, d)``: what is compared of clients that trained from ``first``."""
        return updates if self.updates else first + updates

    def vectors(self, first: Tensor, updates: Tensor) -> Tensor:
        """``(n, p)``: the same in the compared layers; a copy."""
        spans = [self.columns[layer] for layer in self.compared]
        return torch.cat([self.seen(first, updates)[:, start:stop] for start, stop in spans], dim=1)

    def alike(self, similarity: float) -> bool:
        """Whether a client is so like another that they belong together, as for the dendrogram: above the threshold."""
        return self.threshold is None or similarity > self.threshold

    def words(self) -> str:
        return f"threshold {self.threshold:g}" if self.threshold is not None else f"{self.groups} groups asked for"


def layers_compared(federation: Federation, named: tuple[str, ...], needed: bool) -> tuple[str, ...]:
    """The layers ``named``, or else the fully-connected ones, in the model's order.

    Raises :class:`SettingError` for a layer that the model does not have, and where there is none though it is ``needed``.
    """
    known = ", ".join(federation.columns)
    for layer in named:
        if layer not in federation.columns:
            hint = nearest(layer, federation.columns)
            raise SettingError(f"ACFL.layers: the model has no layer {layer!r}{hint} (layers: {known})")
    if needed and not (named or federation.dense):
        raise SettingError(
            f"ACFL.layers is empty, which means the fully-connected layers, and the model has none; name some of {known}"
        )
    return tuple(layer for layer in federation.columns if layer in set(named or federation.dense))


def clustered(
    rule: Rule, round: int, first: Tensor, replies: Replies, late: tuple[Client, ...]
) -> tuple[Seats, Tensor, Note]:
    """The groups of those heard: their seats, the model ``(k, d)`` of each (line 9 of the algorithm), and why."""
    assert replies.updates is not None
    grams = layer_grams(rule.seen(first, replies.updates), rule.columns)
    compared = cosine(np.sum([grams[layer] for layer in rule.compared], axis=0))
    labels, merges = _labels(rule, compared)
    parts = groups_of(labels)
    models = torch.stack([_mean(first, replies, [replies.clients[i] for i in part]) for part in parts])
    seats = Seats(
        round=round, first=first, clients=replies.clients, home=tuple(labels.tolist()),
        vectors=rule.vectors(first, replies.updates),
    )  # fmt: skip
    found = [[replies.clients[i] for i in part] for part in parts]
    found_in = {**layer_cosines(grams), "compared": compared}
    similar = {name: torch.from_numpy(matrix).float() for name, matrix in found_in.items()}
    note = _note(rule, found, 1 - np.sort(merges), late)
    return seats, models, replace(note, heard=replies.clients, similarity=similar)


def _labels(rule: Rule, similar: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(label per client, numbered by first member; heights of the merges), from similarities ``(n, n)``."""
    merges = dendrogram(1 - similar, rule.linkage)
    threshold = None if rule.threshold is None else 1 - rule.threshold
    groups = None if rule.groups is None else min(rule.groups, len(similar))
    return cut_dendrogram(merges, threshold=threshold, groups=groups), merges[:, 2]


def _mean(first: Tensor, replies: Replies, clients: list[Client]) -> Tensor:
    """The data-weighted mean of what ``clients`` trained ``first`` to."""
    heard = replies.of(clients)
    assert heard.updates is not None
    return heard.averaging.around(first, first + heard.updates, weights(heard, "data"))


def _note(rule: Rule, found: list[list[Client]], merged: np.ndarray, late: tuple[Client, ...]) -> Note:
    """The cut in words. merged: similarity of each merge, the most alike first."""
    count = len(found)
    made, open_ = np.split(merged, [len(merged) - (count - 1)])
    numbers = {"groups": float(count)}
    if len(made):
        numbers["lowest_merged"] = float(made[-1])
    if len(open_):
        numbers["highest_apart"] = float(open_[0])
    inside, across = (f"{numbers[name]:.3g}" if name in numbers else "none" for name in ("lowest_merged", "highest_apart"))
    text = (
        f"{rule.linkage} linkage of the cosine similarity of {'updates' if rule.updates else 'weights'} in "
        f"{', '.join(layer or 'the only layer' for layer in rule.compared)}, {rule.words()}: "
        f"lowest similarity merged {inside}, highest kept apart {across}, {count} group{'s' if count > 1 else ''}"
    )
    if late:
        text += f"; {len(late)} silent clients wait in a group of their own"
    groups = as_groups([*found, late] if late else found)
    kind = "cluster" if len(groups) > 1 else "keep"
    return Note(kind=kind, clients=tuple(sorted(c for g in groups for c in g)), text=text, parts=groups, numbers=numbers)


def placed(rule: Rule, seats: Seats, groups: int, replies: Replies) -> tuple[Seats, Tensor, tuple[Note, ...]]:
    """Late clients that trained from ``seats.first``: the seats with theirs, models ``(j, d)`` of new groups, and why.

    groups: how many there are; new ones are numbered from there. A client of whom an older vector is known is compared
    with that too, which is then replaced.
    """
    assert replies.updates is not None
    mine = rule.vectors(seats.first, replies.updates)
    known, home, vectors, notes = list(seats.clients), list(seats.home), seats.vectors, []
    founded: list[list[Client]] = []
    for client, vector in zip(replies.clients, mine, strict=True):
        similar = closeness(vector, vectors)
        best = int(similar.argmax())
        joins, like = rule.alike(float(similar[best])), known[best]
        if not joins:
            founded.append([])
        group = home[best] if joins else groups + len(founded) - 1
        if group >= groups:
            founded[group - groups].append(client)
        notes.append(_joined(rule, client, like, float(similar[best]), joins))
        others = [i for i, other in enumerate(known) if other != client]
        known, home = [known[i] for i in others] + [client], [home[i] for i in others] + [group]
        vectors = torch.cat([vectors[others], vector[None]])
    models = [_mean(seats.first, replies, members) for members in founded]
    new = torch.stack(models) if models else seats.first.new_zeros(0, len(seats.first))
    return replace(seats, clients=tuple(known), home=tuple(home), vectors=vectors), new, tuple(notes)


def _joined(rule: Rule, client: Client, like: Client, similarity: float, joins: bool) -> Note:
    whom = "itself before" if like == client else f"client {like}"
    text = f"client {client} is most like {whom}, cosine similarity {similarity:.3g}, {rule.words()}: "
    text += "it joins that group" if joins else "a group of its own"
    return Note(kind="join", clients=(client,), text=text, numbers={"similarity": similarity, "like": float(like)})
