"""CFL as an observer sees it: beside its own notes, the cosines of what each group's members send, in every round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from coterie.clustering import cosine, gram
from coterie.core import Client, Note, Replies
from coterie.data.world import World
from coterie.methods import CFL
from coterie.methods.cfl import CFLState
from papers.cfl import gap_of
from papers.numbers import short
from papers.watched import UPDATES, cosines_of

WATCH = "watch"
"""The kind of a note that tells nothing but cosines."""


def watch(clients: tuple[Client, ...], replies: Replies, columns: slice) -> Note | None:
    """The cosines of those of ``clients`` that sent updates; None if nobody did."""
    part = replies.of(clients)
    if part.updates is None or not part.clients:
        return None
    cosines = torch.from_numpy(cosine(gram(part.updates, columns=columns))).float()
    return Note(
        kind=WATCH,
        clients=clients,
        text="watched",
        similarity={UPDATES: cosines},
        heard=part.clients,
    )


@dataclass(frozen=True, kw_only=True)
class SeenCFL(CFL):
    """CFL that also tells each round's cosines within every group that was trained."""

    name: ClassVar[str] = "seen-cfl"

    def step(self, state: CFLState, replies: Replies) -> CFLState:
        columns = slice(0, state.tree.parameters)
        seen = [note for leaf in state.leaves if (note := watch(leaf.clients, replies, columns))]
        new = super().step(state, replies)
        return replace(new, notes=(*new.notes, *seen))


def numbers_of(note: Note, world: World) -> dict[str, Any]:
    """Of the group of a watching note, two clients or more: ``gap``, the separation gap g(α), None where the truth is not
    known; ``least`` and ``mean``, the cosines of two of its members."""
    square = cosines_of(note, UPDATES)
    pairs = square[np.triu_indices(len(square), 1)]
    gap = gap_of(note, UPDATES, world)["gap"] if world.truth else None
    return {"gap": gap, "least": short(float(pairs.min())), "mean": short(float(pairs.mean()))}
